/*! https://github.com/leeoniya/uPlot (v1.6.32) */
var uPlot=function(){"use strict";const l="u-off",e="u-label",t="width",n="height",i="top",o="bottom",s="left",r="right",u="#000",a=u+"0",f="mousemove",c="mousedown",h="mouseup",d="mouseenter",p="mouseleave",m="dblclick",g="change",x="dppxchange",w="--",_="undefined"!=typeof window,b=_?document:null,v=_?window:null,k=_?navigator:null;let y,M;function S(l,e){if(null!=e){let t=l.classList;!t.contains(e)&&t.add(e)}}function T(l,e){let t=l.classList;t.contains(e)&&t.remove(e)}function E(l,e,t){l.style[e]=t+"px"}function z(l,e,t,n){let i=b.createElement(l);return null!=e&&S(i,e),null!=t&&t.insertBefore(i,n),i}function D(l,e){return z("div",l,e)}const P=new WeakMap;function A(e,t,n,i,o){let s="translate("+t+"px,"+n+"px)";s!=P.get(e)&&(e.style.transform=s,P.set(e,s),0>t||0>n||t>i||n>o?S(e,l):T(e,l))}const W=new WeakMap;function Y(l,e,t){let n=e+t;n!=W.get(l)&&(W.set(l,n),l.style.background=e,l.style.borderColor=t)}const C=new WeakMap;function H(l,e,t,n){let i=e+""+t;i!=C.get(l)&&(C.set(l,i),l.style.height=t+"px",l.style.width=e+"px",l.style.marginLeft=n?-e/2+"px":0,l.style.marginTop=n?-t/2+"px":0)}const F={passive:!0},R={...F,capture:!0};function G(l,e,t,n){e.addEventListener(l,t,n?R:F)}function I(l,e,t){e.removeEventListener(l,t,F)}function L(l,e,t,n){let i;t=t||0;let o=2147483647>=(n=n||e.length-1);for(;n-t>1;)i=o?t+n>>1:sl((t+n)/2),l>e[i]?t=i:n=i;return l-e[t]>e[n]-l?n:t}function O(l){return(e,t,n)=>{let i=-1,o=-1;for(let o=t;n>=o;o++)if(l(e[o])){i=o;break}for(let i=n;i>=t;i--)if(l(e[i])){o=i;break}return[i,o]}}_&&function l(){let e=devicePixelRatio;y!=e&&(y=e,M&&I(g,M,l),M=matchMedia(`(min-resolution: ${y-.001}dppx) and (max-resolution: ${y+.001}dppx)`),G(g,M,l),v.dispatchEvent(new CustomEvent(x)))}();const N=l=>null!=l,j=l=>null!=l&&l>0,U=O(N),V=O(j);function B(l,e,t,n){let i=hl(l),o=hl(e);l==e&&(-1==i?(l*=t,e/=t):(l/=t,e*=t));let s=10==t?dl:pl,r=1==o?ul:sl,u=(1==i?sl:ul)(s(ol(l))),a=r(s(ol(e))),f=cl(t,u),c=cl(t,a);return 10==t&&(0>u&&(f=Al(f,-u)),0>a&&(c=Al(c,-a))),n||2==t?(l=f*i,e=c*o):(l=Pl(l,f),e=Dl(e,c)),[l,e]}function $(l,e,t,n){let i=B(l,e,t,n);return 0==l&&(i[0]=0),0==e&&(i[1]=0),i}const J=.1,q={mode:3,pad:J},K={pad:0,soft:null,mode:0},X={min:K,max:K};function Z(l,e,t,n){return Ol(t)?ll(l,e,t):(K.pad=t,K.soft=n?0:null,K.mode=n?3:0,ll(l,e,X))}function Q(l,e){return null==l?e:l}function ll(l,e,t){let n=t.min,i=t.max,o=Q(n.pad,0),s=Q(i.pad,0),r=Q(n.hard,-gl),u=Q(i.hard,gl),a=Q(n.soft,gl),f=Q(i.soft,-gl),c=Q(n.mode,0),h=Q(i.mode,0),d=e-l,p=dl(d),m=fl(ol(l),ol(e)),g=dl(m),x=ol(g-p);(1e-24>d||x>10)&&(d=0,0!=l&&0!=e||(d=1e-24,2==c&&a!=gl&&(o=0),2==h&&f!=-gl&&(s=0)));let w=d||m||1e3,_=dl(w),b=cl(10,sl(_)),v=Al(Pl(l-w*(0==d?0==l?.1:1:o),b/10),24),k=a>l||1!=c&&(3!=c||v>a)&&(2!=c||a>v)?gl:a,y=fl(r,k>v&&l>=k?k:al(k,v)),M=Al(Dl(e+w*(0==d?0==e?.1:1:s),b/10),24),S=e>f||1!=h&&(3!=h||f>M)&&(2!=h||M>f)?-gl:f,T=al(u,M>S&&S>=e?S:fl(S,M));return y==T&&0==y&&(T=100),[y,T]}const el=new Intl.NumberFormat(_?k.language:"en-US"),tl=l=>el.format(l),nl=Math,il=nl.PI,ol=nl.abs,sl=nl.floor,rl=nl.round,ul=nl.ceil,al=nl.min,fl=nl.max,cl=nl.pow,hl=nl.sign,dl=nl.log10,pl=nl.log2,ml=(l,e=1)=>nl.asinh(l/e),gl=1/0;function xl(l){return 1+(0|dl((l^l>>31)-(l>>31)))}function wl(l,e,t){return al(fl(l,e),t)}function _l(l){return"function"==typeof l}function bl(l){return _l(l)?l:()=>l}const vl=l=>l,kl=(l,e)=>e,yl=()=>null,Ml=()=>!0,Sl=(l,e)=>l==e,Tl=/\.\d*?(?=9{6,}|0{6,})/gm,El=l=>{if(Il(l)||Wl.has(l))return l;const e=""+l,t=e.match(Tl);if(null==t)return l;let n=t[0].length-1;if(-1!=e.indexOf("e-")){let[l,t]=e.split("e");return+`${El(l)}e${t}`}return Al(l,n)};function zl(l,e){return El(Al(El(l/e))*e)}function Dl(l,e){return El(ul(El(l/e))*e)}function Pl(l,e){return El(sl(El(l/e))*e)}function Al(l,e=0){if(Il(l))return l;let t=10**e;return rl(l*t*(1+Number.EPSILON))/t}const Wl=new Map;function Yl(l){return((""+l).split(".")[1]||"").length}function Cl(l,e,t,n){let i=[],o=n.map(Yl);for(let s=e;t>s;s++){let e=ol(s),t=Al(cl(l,s),e);for(let r=0;n.length>r;r++){let u=10==l?+`${n[r]}e${s}`:n[r]*t,a=(0>s?e:0)+(o[r]>s?o[r]:0),f=10==l?u:Al(u,a);i.push(f),Wl.set(f,a)}}return i}const Hl={},Fl=[],Rl=[null,null],Gl=Array.isArray,Il=Number.isInteger;function Ll(l){return"string"==typeof l}function Ol(l){let e=!1;if(null!=l){let t=l.constructor;e=null==t||t==Object}return e}function Nl(l){return null!=l&&"object"==typeof l}const jl=Object.getPrototypeOf(Uint8Array),Ul="__proto__";function Vl(l,e=Ol){let t;if(Gl(l)){let n=l.find((l=>null!=l));if(Gl(n)||e(n)){t=Array(l.length);for(let n=0;l.length>n;n++)t[n]=Vl(l[n],e)}else t=l.slice()}else if(l instanceof jl)t=l.slice();else if(e(l)){t={};for(let n in l)n!=Ul&&(t[n]=Vl(l[n],e))}else t=l;return t}function Bl(l){let e=arguments;for(let t=1;e.length>t;t++){let n=e[t];for(let e in n)e!=Ul&&(Ol(l[e])?Bl(l[e],Vl(n[e])):l[e]=Vl(n[e]))}return l}function $l(l,e,t){for(let n,i=0,o=-1;e.length>i;i++){let s=e[i];if(s>o){for(n=s-1;n>=0&&null==l[n];)l[n--]=null;for(n=s+1;t>n&&null==l[n];)l[o=n++]=null}}}const Jl="undefined"==typeof queueMicrotask?l=>Promise.resolve().then(l):queueMicrotask,ql=["January","February","March","April","May","June","July","August","September","October","November","December"],Kl=["Sunday","Monday","Tuesday","Wednesday","Thursday","Friday","Saturday"];function Xl(l){return l.slice(0,3)}const Zl=Kl.map(Xl),Ql=ql.map(Xl),le={MMMM:ql,MMM:Ql,WWWW:Kl,WWW:Zl};function ee(l){return(10>l?"0":"")+l}const te={YYYY:l=>l.getFullYear(),YY:l=>(l.getFullYear()+"").slice(2),MMMM:(l,e)=>e.MMMM[l.getMonth()],MMM:(l,e)=>e.MMM[l.getMonth()],MM:l=>ee(l.getMonth()+1),M:l=>l.getMonth()+1,DD:l=>ee(l.getDate()),D:l=>l.getDate(),WWWW:(l,e)=>e.WWWW[l.getDay()],WWW:(l,e)=>e.WWW[l.getDay()],HH:l=>ee(l.getHours()),H:l=>l.getHours(),h:l=>{let e=l.getHours();return 0==e?12:e>12?e-12:e},AA:l=>12>l.getHours()?"AM":"PM",aa:l=>12>l.getHours()?"am":"pm",a:l=>12>l.getHours()?"a":"p",mm:l=>ee(l.getMinutes()),m:l=>l.getMinutes(),ss:l=>ee(l.getSeconds()),s:l=>l.getSeconds(),fff:l=>function(l){return(10>l?"00":100>l?"0":"")+l}(l.getMilliseconds())};function ne(l,e){e=e||le;let t,n=[],i=/\{([a-z]+)\}|[^{]+/gi;for(;t=i.exec(l);)n.push("{"==t[0][0]?te[t[1]]:t[0]);return l=>{let t="";for(let i=0;n.length>i;i++)t+="string"==typeof n[i]?n[i]:n[i](l,e);return t}}const ie=(new Intl.DateTimeFormat).resolvedOptions().timeZone,oe=l=>l%1==0,se=[1,2,2.5,5],re=Cl(10,-32,0,se),ue=Cl(10,0,32,se),ae=ue.filter(oe),fe=re.concat(ue),ce="{YYYY}",he="\n"+ce,de="{M}/{D}",pe="\n"+de,me=pe+"/{YY}",ge="{aa}",xe="{h}:{mm}"+ge,we="\n"+xe,_e=":{ss}",be=null;function ve(l){let e=1e3*l,t=60*e,n=60*t,i=24*n,o=30*i,s=365*i;return[(1==l?Cl(10,0,3,se).filter(oe):Cl(10,-3,0,se)).concat([e,5*e,10*e,15*e,30*e,t,5*t,10*t,15*t,30*t,n,2*n,3*n,4*n,6*n,8*n,12*n,i,2*i,3*i,4*i,5*i,6*i,7*i,8*i,9*i,10*i,15*i,o,2*o,3*o,4*o,6*o,s,2*s,5*s,10*s,25*s,50*s,100*s]),[[s,ce,be,be,be,be,be,be,1],[28*i,"{MMM}",he,be,be,be,be,be,1],[i,de,he,be,be,be,be,be,1],[n,"{h}"+ge,me,be,pe,be,be,be,1],[t,xe,me,be,pe,be,be,be,1],[e,_e,me+" "+xe,be,pe+" "+xe,be,we,be,1],[l,_e+".{fff}",me+" "+xe,be,pe+" "+xe,be,we,be,1]],function(e){return(r,u,a,f,c,h)=>{let d=[],p=c>=s,m=c>=o&&s>c,g=e(a),x=Al(g*l,3),w=Pe(g.getFullYear(),p?0:g.getMonth(),m||p?1:g.getDate()),_=Al(w*l,3);if(m||p){let t=m?c/o:0,n=p?c/s:0,i=x==_?x:Al(Pe(w.getFullYear()+n,w.getMonth()+t,1)*l,3),r=new Date(rl(i/l)),u=r.getFullYear(),a=r.getMonth();for(let o=0;f>=i;o++){let s=Pe(u+n*o,a+t*o,1),r=s-e(Al(s*l,3));i=Al((+s+r)*l,3),i>f||d.push(i)}}else{let o=i>c?c:i,s=_+(sl(a)-sl(x))+Dl(x-_,o);d.push(s);let p=e(s),m=p.getHours()+p.getMinutes()/t+p.getSeconds()/n,g=c/n,w=h/r.axes[u]._space;for(;s=Al(s+c,1==l?0:3),f>=s;)if(g>1){let l=sl(Al(m+g,6))%24,t=e(s).getHours()-l;t>1&&(t=-1),s-=t*n,m=(m+g)%24,.7>Al((s-d[d.length-1])/c,3)*w||d.push(s)}else d.push(s)}return d}}]}const[ke,ye,Me]=ve(1),[Se,Te,Ee]=ve(.001);function ze(l,e){return l.map((l=>l.map(((t,n)=>0==n||8==n||null==t?t:e(1==n||0==l[8]?t:l[1]+t)))))}function De(l,e){return(t,n,i,o,s)=>{let r,u,a,f,c,h,d=e.find((l=>s>=l[0]))||e[e.length-1];return n.map((e=>{let t=l(e),n=t.getFullYear(),i=t.getMonth(),o=t.getDate(),s=t.getHours(),p=t.getMinutes(),m=t.getSeconds(),g=n!=r&&d[2]||i!=u&&d[3]||o!=a&&d[4]||s!=f&&d[5]||p!=c&&d[6]||m!=h&&d[7]||d[1];return r=n,u=i,a=o,f=s,c=p,h=m,g(t)}))}}function Pe(l,e,t){return new Date(l,e,t)}function Ae(l,e){return e(l)}function We(l,e){return(t,n,i,o)=>null==o?w:e(l(n))}Cl(2,-53,53,[1]);const Ye={show:!0,live:!0,isolate:!1,mount:()=>{},markers:{show:!0,width:2,stroke:function(l,e){let t=l.series[e];return t.width?t.stroke(l,e):t.points.width?t.points.stroke(l,e):null},fill:function(l,e){return l.series[e].fill(l,e)},dash:"solid"},idx:null,idxs:null,values:[]},Ce=[0,0];function He(l,e,t,n=!0){return l=>{0==l.button&&(!n||l.target==e)&&t(l)}}function Fe(l,e,t,n=!0){return l=>{(!n||l.target==e)&&t(l)}}const Re={show:!0,x:!0,y:!0,lock:!1,move:function(l,e,t){return Ce[0]=e,Ce[1]=t,Ce},points:{one:!1,show:function(l,e){let i=l.cursor.points,o=D(),s=i.size(l,e);E(o,t,s),E(o,n,s);let r=s/-2;E(o,"marginLeft",r),E(o,"marginTop",r);let u=i.width(l,e,s);return u&&E(o,"borderWidth",u),o},size:function(l,e){return l.series[e].points.size},width:0,stroke:function(l,e){let t=l.series[e].points;return t._stroke||t._fill},fill:function(l,e){let t=l.series[e].points;return t._fill||t._stroke}},bind:{mousedown:He,mouseup:He,click:He,dblclick:He,mousemove:Fe,mouseleave:Fe,mouseenter:Fe},drag:{setScale:!0,x:!0,y:!1,dist:0,uni:null,click:(l,e)=>{e.stopPropagation(),e.stopImmediatePropagation()},_x:!1,_y:!1},focus:{dist:(l,e,t,n,i)=>n-i,prox:-1,bias:0},hover:{skip:[void 0],prox:null,bias:0},left:-10,top:-10,idx:null,dataIdx:null,idxs:null,event:null},Ge={show:!0,stroke:"rgba(0,0,0,0.07)",width:2},Ie=Bl({},Ge,{filter:kl}),Le=Bl({},Ie,{size:10}),Oe=Bl({},Ge,{show:!1}),Ne='12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif, "Apple Color Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Color Emoji"',je="bold "+Ne,Ue={show:!0,scale:"x",stroke:u,space:50,gap:5,alignTo:1,size:50,labelGap:0,labelSize:30,labelFont:je,side:2,grid:Ie,ticks:Le,border:Oe,font:Ne,lineGap:1.5,rotate:0},Ve={show:!0,scale:"x",auto:!1,sorted:1,min:gl,max:-gl,idxs:[]};function Be(l,e){return e.map((l=>null==l?"":tl(l)))}function $e(l,e,t,n,i,o,s){let r=[],u=Wl.get(i)||0;for(let l=t=s?t:Al(Dl(t,i),u);n>=l;l=Al(l+i,u))r.push(Object.is(l,-0)?0:l);return r}function Je(l,e,t,n,i){const o=[],s=l.scales[l.axes[e].scale].log,r=sl((10==s?dl:pl)(t));i=cl(s,r),10==s&&(i=fe[L(i,fe)]);let u=t,a=i*s;10==s&&(a=fe[L(a,fe)]);do{o.push(u),u+=i,10!=s||Wl.has(u)||(u=Al(u,Wl.get(i))),a>u||(a=(i=u)*s,10==s&&(a=fe[L(a,fe)]))}while(n>=u);return o}function qe(l,e,t,n,i){let o=l.scales[l.axes[e].scale].asinh,s=n>o?Je(l,e,fl(o,t),n,i):[o],r=0>n||t>0?[]:[0];return(-o>t?Je(l,e,fl(o,-n),-t,i):[o]).reverse().map((l=>-l)).concat(r,s)}const Ke=/./,Xe=/[12357]/,Ze=/[125]/,Qe=/1/,lt=(l,e,t,n)=>l.map(((l,i)=>4==e&&0==l||i%n==0&&t.test(l.toExponential()[0>l?1:0])?l:null));function et(l,e,t){let n=l.axes[t],i=n.scale,o=l.scales[i],s=l.valToPos,r=n._space,u=s(10,i),a=s(9,i)-u<r?s(7,i)-u<r?s(5,i)-u<r?Qe:Ze:Xe:Ke;if(a==Qe){let l=ol(s(1,i)-u);if(r>l)return lt(e.slice().reverse(),o.distr,a,ul(r/l)).reverse()}return lt(e,o.distr,a,1)}function tt(l,e,t){let n=l.axes[t],i=n.scale,o=n._space,s=l.valToPos,r=ol(s(1,i)-s(2,i));return o>r?lt(e.slice().reverse(),3,Ke,ul(o/r)).reverse():e}function nt(l,e,t,n){return null==n?w:null==e?"":tl(e)}const it={show:!0,scale:"y",stroke:u,space:30,gap:5,alignTo:1,size:50,labelGap:0,labelSize:30,labelFont:je,side:3,grid:Ie,ticks:Le,border:Oe,font:Ne,lineGap:1.5,rotate:0},ot={scale:null,auto:!0,sorted:0,min:gl,max:-gl},st=(l,e,t,n,i)=>i,rt={show:!0,auto:!0,sorted:0,gaps:st,alpha:1,facets:[Bl({},ot,{scale:"x"}),Bl({},ot,{scale:"y"})]},ut={scale:"y",auto:!0,sorted:0,show:!0,spanGaps:!1,gaps:st,alpha:1,points:{show:function(l,e){let{scale:t,idxs:n}=l.series[0],i=l._data[0],o=l.valToPos(i[n[0]],t,!0),s=l.valToPos(i[n[1]],t,!0);return ol(s-o)/(l.series[e].points.space*y)>=n[1]-n[0]},filter:null},values:null,min:gl,max:-gl,idxs:[],path:null,clip:null};function at(l,e,t){return t/10}const ft={time:!0,auto:!0,distr:1,log:10,asinh:1,min:null,max:null,dir:1,ori:0},ct=Bl({},ft,{time:!1,ori:1}),ht={};function dt(l){let e=ht[l];return e||(e={key:l,plots:[],sub(l){e.plots.push(l)},unsub(l){e.plots=e.plots.filter((e=>e!=l))},pub(l,t,n,i,o,s,r){for(let u=0;e.plots.length>u;u++)e.plots[u]!=t&&e.plots[u].pub(l,t,n,i,o,s,r)}},null!=l&&(ht[l]=e)),e}function pt(l,e,t){const n=l.mode,i=l.series[e],o=2==n?l._data[e]:l._data,s=l.scales,r=l.bbox;let u=o[0],a=2==n?o[1]:o[e],f=2==n?s[i.facets[0].scale]:s[l.series[0].scale],c=2==n?s[i.facets[1].scale]:s[i.scale],h=r.left,d=r.top,p=r.width,m=r.height,g=l.valToPosH,x=l.valToPosV;return 0==f.ori?t(i,u,a,f,c,g,x,h,d,p,m,kt,Mt,Tt,zt,Pt):t(i,u,a,f,c,x,g,d,h,m,p,yt,St,Et,Dt,At)}function mt(l,e){let t=0,n=0,i=Q(l.bands,Fl);for(let l=0;i.length>l;l++){let o=i[l];o.series[0]==e?t=o.dir:o.series[1]==e&&(n|=1==o.dir?1:2)}return[t,1==n?-1:2==n?1:3==n?2:0]}function gt(l,e,t,n,i){let o=l.series[e],s=l.scales[2==l.mode?o.facets[1].scale:o.scale];return-1==i?s.min:1==i?s.max:3==s.distr?1==s.dir?s.min:s.max:0}function xt(l,e,t,n,i,o){return pt(l,e,((l,e,s,r,u,a,f,c,h,d,p)=>{let m=l.pxRound;const g=0==r.ori?Mt:St;let x,w;1==r.dir*(0==r.ori?1:-1)?(x=t,w=n):(x=n,w=t);let _=m(a(e[x],r,d,c)),b=m(f(s[x],u,p,h)),v=m(a(e[w],r,d,c)),k=m(f(1==o?u.max:u.min,u,p,h)),y=new Path2D(i);return g(y,v,k),g(y,_,k),g(y,_,b),y}))}function wt(l,e,t,n,i,o){let s=null;if(l.length>0){s=new Path2D;const r=0==e?Tt:Et;let u=t;for(let e=0;l.length>e;e++){let t=l[e];if(t[1]>t[0]){let l=t[0]-u;l>0&&r(s,u,n,l,n+o),u=t[1]}}let a=t+i-u,f=10;a>0&&r(s,u,n-f/2,a,n+o+f)}return s}function _t(l,e,t,n,i,o,s){let r=[],u=l.length;for(let a=1==i?t:n;a>=t&&n>=a;a+=i)if(null===e[a]){let f=a,c=a;if(1==i)for(;++a<=n&&null===e[a];)c=a;else for(;--a>=t&&null===e[a];)c=a;let h=o(l[f]),d=c==f?h:o(l[c]),p=f-i;h=s>0||0>p||p>=u?h:o(l[p]);let m=c+i;d=0>s||0>m||m>=u?d:o(l[m]),h>d||r.push([h,d])}return r}function bt(l){return 0==l?vl:1==l?rl:e=>zl(e,l)}function vt(l){let e=0==l?kt:yt,t=0==l?(l,e,t,n,i,o)=>{l.arcTo(e,t,n,i,o)}:(l,e,t,n,i,o)=>{l.arcTo(t,e,i,n,o)},n=0==l?(l,e,t,n,i)=>{l.rect(e,t,n,i)}:(l,e,t,n,i)=>{l.rect(t,e,i,n)};return(l,i,o,s,r,u=0,a=0)=>{0==u&&0==a?n(l,i,o,s,r):(u=al(u,s/2,r/2),a=al(a,s/2,r/2),e(l,i+u,o),t(l,i+s,o,i+s,o+r,u),t(l,i+s,o+r,i,o+r,a),t(l,i,o+r,i,o,a),t(l,i,o,i+s,o,u),l.closePath())}}const kt=(l,e,t)=>{l.moveTo(e,t)},yt=(l,e,t)=>{l.moveTo(t,e)},Mt=(l,e,t)=>{l.lineTo(e,t)},St=(l,e,t)=>{l.lineTo(t,e)},Tt=vt(0),Et=vt(1),zt=(l,e,t,n,i,o)=>{l.arc(e,t,n,i,o)},Dt=(l,e,t,n,i,o)=>{l.arc(t,e,n,i,o)},Pt=(l,e,t,n,i,o,s)=>{l.bezierCurveTo(e,t,n,i,o,s)},At=(l,e,t,n,i,o,s)=>{l.bezierCurveTo(t,e,i,n,s,o)};function Wt(){return(l,e,t,n,i)=>pt(l,e,((e,o,s,r,u,a,f,c,h,d,p)=>{let m,g,{pxRound:x,points:w}=e;0==r.ori?(m=kt,g=zt):(m=yt,g=Dt);const _=Al(w.width*y,3);let b=(w.size-w.width)/2*y,v=Al(2*b,3),k=new Path2D,M=new Path2D,{left:S,top:T,width:E,height:z}=l.bbox;Tt(M,S-v,T-v,E+2*v,z+2*v);const D=l=>{if(null!=s[l]){let e=x(a(o[l],r,d,c)),t=x(f(s[l],u,p,h));m(k,e+b,t),g(k,e,t,b,0,2*il)}};if(i)i.forEach(D);else for(let l=t;n>=l;l++)D(l);return{stroke:_>0?k:null,fill:k,clip:M,flags:3}}))}function Yt(l){return(e,t,n,i,o,s)=>{n!=i&&(o!=n&&s!=n&&l(e,t,n),o!=i&&s!=i&&l(e,t,i),l(e,t,s))}}const Ct=Yt(Mt),Ht=Yt(St);function Ft(l){const e=Q(l?.alignGaps,0);return(l,t,n,i)=>pt(l,t,((o,s,r,u,a,f,c,h,d,p,m)=>{[n,i]=U(r,n,i);let g,x,w=o.pxRound,_=l=>w(f(l,u,p,h)),b=l=>w(c(l,a,m,d));0==u.ori?(g=Mt,x=Ct):(g=St,x=Ht);const v=u.dir*(0==u.ori?1:-1),k={stroke:new Path2D,fill:null,clip:null,band:null,gaps:null,flags:1},y=k.stroke;let M=!1;if(i-n<4*p)for(let l=1==v?n:i;l>=n&&i>=l;l+=v){let e=r[l];null===e?M=!0:null!=e&&g(y,_(s[l]),b(e))}else{let e,t,o,a=e=>l.posToVal(e,u.key,!0),f=null,c=null,h=_(s[1==v?n:i]),d=_(s[n]),p=_(s[i]),m=a(1==v?d+1:p-1);for(let l=1==v?n:i;l>=n&&i>=l;l+=v){let n=s[l],i=(1==v?m>n:n>m)?h:_(n),o=r[l];i==h?null!=o?(t=o,null==f?(g(y,i,b(t)),e=f=c=t):f>t?f=t:t>c&&(c=t)):null===o&&(M=!0):(null!=f&&x(y,h,b(f),b(c),b(e),b(t)),null!=o?(t=o,g(y,i,b(t)),f=c=e=t):(f=c=null,null===o&&(M=!0)),h=i,m=a(h+v))}null!=f&&f!=c&&o!=h&&x(y,h,b(f),b(c),b(e),b(t))}let[S,T]=mt(l,t);if(null!=o.fill||0!=S){let e=k.fill=new Path2D(y),r=b(o.fillTo(l,t,o.min,o.max,S)),u=_(s[n]),a=_(s[i]);-1==v&&([a,u]=[u,a]),g(e,a,r),g(e,u,r)}if(!o.spanGaps){let a=[];M&&a.push(..._t(s,r,n,i,v,_,e)),k.gaps=a=o.gaps(l,t,n,i,a),k.clip=wt(a,u.ori,h,d,p,m)}return 0!=T&&(k.band=2==T?[xt(l,t,n,i,y,-1),xt(l,t,n,i,y,1)]:xt(l,t,n,i,y,T)),k}))}function Rt(l,e,t,n,i,o,s=gl){if(l.length>1){let r=null;for(let u=0,a=1/0;l.length>u;u++)if(void 0!==e[u]){if(null!=r){let e=ol(l[u]-l[r]);a>e&&(a=e,s=ol(t(l[u],n,i,o)-t(l[r],n,i,o)))}r=u}}return s}function Gt(l,e,t,n,i){const o=l.length;if(2>o)return null;const s=new Path2D;if(t(s,l[0],e[0]),2==o)n(s,l[1],e[1]);else{let t=Array(o),n=Array(o-1),r=Array(o-1),u=Array(o-1);for(let t=0;o-1>t;t++)r[t]=e[t+1]-e[t],u[t]=l[t+1]-l[t],n[t]=r[t]/u[t];t[0]=n[0];for(let l=1;o-1>l;l++)0===n[l]||0===n[l-1]||n[l-1]>0!=n[l]>0?t[l]=0:(t[l]=3*(u[l-1]+u[l])/((2*u[l]+u[l-1])/n[l-1]+(u[l]+2*u[l-1])/n[l]),isFinite(t[l])||(t[l]=0));t[o-1]=n[o-2];for(let n=0;o-1>n;n++)i(s,l[n]+u[n]/3,e[n]+t[n]*u[n]/3,l[n+1]-u[n]/3,e[n+1]-t[n+1]*u[n]/3,l[n+1],e[n+1])}return s}const It=new Set;function Lt(){for(let l of It)l.syncRect(!0)}_&&(G("resize",v,Lt),G("scroll",v,Lt,!0),G(x,v,(()=>{en.pxRatio=y})));const Ot=Ft(),Nt=Wt();function jt(l,e,t,n){return(n?[l[0],l[1]].concat(l.slice(2)):[l[0]].concat(l.slice(1))).map(((l,n)=>Ut(l,n,e,t)))}function Ut(l,e,t,n){return Bl({},0==e?t:n,l)}function Vt(l,e,t){return null==e?Rl:[e,t]}const Bt=Vt;function $t(l,e,t){return null==e?Rl:Z(e,t,J,!0)}function Jt(l,e,t,n){return null==e?Rl:B(e,t,l.scales[n].log,!1)}const qt=Jt;function Kt(l,e,t,n){return null==e?Rl:$(e,t,l.scales[n].log,!1)}const Xt=Kt;function Zt(l,e,t,n,i){let o=fl(xl(l),xl(e)),s=e-l,r=L(i/n*s,t);do{let l=t[r],e=n*l/s;if(e>=i&&17>=o+(5>l?Wl.get(l):0))return[l,e]}while(++r<t.length);return[0,0]}function Qt(l){let e,t;return[l=l.replace(/(\d+)px/,((l,n)=>(e=rl((t=+n)*y))+"px")),e,t]}function ln(l){l.show&&[l.font,l.labelFont].forEach((l=>{let e=Al(l[2]*y,1);l[0]=l[0].replace(/[0-9.]+px/,e+"px"),l[1]=e}))}function en(u,g,_){const k={mode:Q(u.mode,1)},M=k.mode;function P(l,e,t,n){let i=e.valToPct(l);return n+t*(-1==e.dir?1-i:i)}function W(l,e,t,n){let i=e.valToPct(l);return n+t*(-1==e.dir?i:1-i)}function C(l,e,t,n){return 0==e.ori?P(l,e,t,n):W(l,e,t,n)}k.valToPosH=P,k.valToPosV=W;let F=!1;k.status=0;const R=k.root=D("uplot");null!=u.id&&(R.id=u.id),S(R,u.class),u.title&&(D("u-title",R).textContent=u.title);const O=z("canvas"),K=k.ctx=O.getContext("2d"),X=D("u-wrap",R);G("click",X,(l=>{l.target===el&&(Nn!=Gn||jn!=In)&&Zn.click(k,l)}),!0);const ll=k.under=D("u-under",X);X.appendChild(O);const el=k.over=D("u-over",X),tl=+Q((u=Vl(u)).pxAlign,1),sl=bt(tl);(u.plugins||[]).forEach((l=>{l.opts&&(u=l.opts(k,u)||u)}));const hl=u.ms||.001,pl=k.series=1==M?jt(u.series||[],Ve,ut,!1):function(l,e){return l.map(((l,t)=>0==t?{}:Bl({},e,l)))}(u.series||[null],rt),xl=k.axes=jt(u.axes||[],Ue,it,!0),vl=k.scales={},Tl=k.bands=u.bands||[];Tl.forEach((l=>{l.fill=bl(l.fill||null),l.dir=Q(l.dir,-1)}));const El=2==M?pl[1].facets[0].scale:pl[0].scale,Dl={axes:function(){for(let l=0;xl.length>l;l++){let e=xl[l];if(!e.show||!e._show)continue;let t,n,u=e.side,a=u%2,f=e.stroke(k,l),c=0==u||3==u?-1:1,[h,d]=e._found;if(null!=e.label){let s=rl((e._lpos+e.labelGap*c)*y);_n(e.labelFont[0],f,"center",2==u?i:o),K.save(),1==a?(t=n=0,K.translate(s,rl(lt+st/2)),K.rotate((3==u?-il:il)/2)):(t=rl(Qe+ot/2),n=s);let r=_l(e.label)?e.label(k,l,h,d):e.label;K.fillText(r,t,n),K.restore()}if(0==d)continue;let p=vl[e.scale],m=0==a?ot:st,g=0==a?Qe:lt,x=e._splits,w=2==p.distr?x.map((l=>pn[l])):x,_=2==p.distr?pn[x[1]]-pn[x[0]]:h,b=e.ticks,v=e.border,M=b.show?b.size:0,S=rl(M*y),T=rl((2==e.alignTo?e._size-M-e.gap:e.gap)*y),E=e._rotate*-il/180,z=sl(e._pos*y),D=z+(S+T)*c;n=0==a?D:0,t=1==a?D:0,_n(e.font[0],f,1==e.align?s:2==e.align?r:E>0?s:0>E?r:0==a?"center":3==u?r:s,E||1==a?"middle":2==u?i:o);let P=e.font[1]*e.lineGap,A=x.map((l=>sl(C(l,p,m,g)))),W=e._values;for(let l=0;W.length>l;l++){let e=W[l];if(null!=e){0==a?t=A[l]:n=A[l],e=""+e;let i=-1==e.indexOf("\n")?[e]:e.split(/\n/gm);for(let l=0;i.length>l;l++){let e=i[l];E?(K.save(),K.translate(t,n+l*P),K.rotate(E),K.fillText(e,0,0),K.restore()):K.fillText(e,t,n+l*P)}}}b.show&&zn(A,b.filter(k,w,l,d,_),a,u,z,S,Al(b.width*y,3),b.stroke(k,l),b.dash,b.cap);let Y=e.grid;Y.show&&zn(A,Y.filter(k,w,l,d,_),a,0==a?2:1,0==a?lt:Qe,0==a?st:ot,Al(Y.width*y,3),Y.stroke(k,l),Y.dash,Y.cap),v.show&&zn([z],[1],0==a?1:0,0==a?1:2,1==a?lt:Qe,1==a?st:ot,Al(v.width*y,3),v.stroke(k,l),v.dash,v.cap)}Ci("drawAxes")},series:function(){if(Gt>0){let l=pl.some((l=>l._focus))&&dn!=Tt.alpha;l&&(K.globalAlpha=dn=Tt.alpha),pl.forEach(((l,e)=>{if(e>0&&l.show&&(kn(e,!1),kn(e,!0),null==l._paths)){let t=dn;dn!=l.alpha&&(K.globalAlpha=dn=l.alpha);let n=2==M?[0,g[e][0].length-1]:function(l){let e=wl(Lt-1,0,Gt-1),t=wl(en+1,0,Gt-1);for(;null==l[e]&&e>0;)e--;for(;null==l[t]&&Gt-1>t;)t++;return[e,t]}(g[e]);l._paths=l.paths(k,e,n[0],n[1]),dn!=t&&(K.globalAlpha=dn=t)}})),pl.forEach(((l,e)=>{if(e>0&&l.show){let t=dn;dn!=l.alpha&&(K.globalAlpha=dn=l.alpha),null!=l._paths&&yn(e,!1);{let t=null!=l._paths?l._paths.gaps:null,n=l.points.show(k,e,Lt,en,t),i=l.points.filter(k,e,n,t);(n||i)&&(l.points._paths=l.points.paths(k,e,Lt,en,i),yn(e,!0))}dn!=t&&(K.globalAlpha=dn=t),Ci("drawSeries",e)}})),l&&(K.globalAlpha=dn=1)}}},Pl=(u.drawOrder||["axes","series"]).map((l=>Dl[l]));function Cl(l){const e=3==l.distr?e=>dl(e>0?e:l.clamp(k,e,l.min,l.max,l.key)):4==l.distr?e=>ml(e,l.asinh):100==l.distr?e=>l.fwd(e):l=>l;return t=>{let n=e(t),{_min:i,_max:o}=l;return(n-i)/(o-i)}}function Il(l){let e=vl[l];if(null==e){let t=(u.scales||Hl)[l]||Hl;if(null!=t.from){Il(t.from);let e=Bl({},vl[t.from],t,{key:l});e.valToPct=Cl(e),vl[l]=e}else{e=vl[l]=Bl({},l==El?ft:ct,t),e.key=l;let n=e.time,i=e.range,o=Gl(i);if((l!=El||2==M&&!n)&&(!o||null!=i[0]&&null!=i[1]||(i={min:null==i[0]?q:{mode:1,hard:i[0],soft:i[0]},max:null==i[1]?q:{mode:1,hard:i[1],soft:i[1]}},o=!1),!o&&Ol(i))){let l=i;i=(e,t,n)=>null==t?Rl:Z(t,n,l)}e.range=bl(i||(n?Bt:l==El?3==e.distr?qt:4==e.distr?Xt:Vt:3==e.distr?Jt:4==e.distr?Kt:$t)),e.auto=bl(!o&&e.auto),e.clamp=bl(e.clamp||at),e._min=e._max=null,e.valToPct=Cl(e)}}}Il("x"),Il("y"),1==M&&pl.forEach((l=>{Il(l.scale)})),xl.forEach((l=>{Il(l.scale)}));for(let l in u.scales)Il(l);const jl=vl[El],Ul=jl.distr;let $l,ql;0==jl.ori?(S(R,"u-hz"),$l=P,ql=W):(S(R,"u-vt"),$l=W,ql=P);const Kl={};for(let l in vl){let e=vl[l];null==e.min&&null==e.max||(Kl[l]={min:e.min,max:e.max},e.min=e.max=null)}const Xl=u.tzDate||(l=>new Date(rl(l/hl))),Zl=u.fmtDate||ne,Ql=1==hl?Me(Xl):Ee(Xl),le=De(Xl,ze(1==hl?ye:Te,Zl)),ee=We(Xl,Ae("{YYYY}-{MM}-{DD} {h}:{mm}{aa}",Zl)),te=[],ie=k.legend=Bl({},Ye,u.legend),oe=k.cursor=Bl({},Re,{drag:{y:2==M}},u.cursor),se=ie.show,re=oe.show,ue=ie.markers;let ce,he,de;ie.idxs=te,ue.width=bl(ue.width),ue.dash=bl(ue.dash),ue.stroke=bl(ue.stroke),ue.fill=bl(ue.fill);let pe,me=[],ge=[],xe=!1,we={};if(ie.live){const l=pl[1]?pl[1].values:null;xe=null!=l,pe=xe?l(k,1,0):{_:0};for(let l in pe)we[l]=w}if(se)if(ce=z("table","u-legend",R),de=z("tbody",null,ce),ie.mount(k,ce),xe){he=z("thead",null,ce,de);let l=z("tr",null,he);for(var _e in z("th",null,l),pe)z("th",e,l).textContent=_e}else S(ce,"u-inline"),ie.live&&S(ce,"u-live");const be={show:!0},ve={show:!1},Pe=new Map;function Ce(l,e,t,n=!0){const i=Pe.get(e)||{},o=oe.bind[l](k,e,t,n);o&&(G(l,e,i[l]=o),Pe.set(e,i))}function He(l,e){const t=Pe.get(e)||{};for(let n in t)null!=l&&n!=l||(I(n,e,t[n]),delete t[n]);null==l&&Pe.delete(e)}let Fe=0,Ge=0,Ie=0,Le=0,Oe=0,Ne=0,je=Oe,Ke=Ne,Xe=Ie,Ze=Le,Qe=0,lt=0,ot=0,st=0;k.bbox={};let ht=!1,pt=!1,mt=!1,xt=!1,wt=!1,_t=!1;function vt(l,e,t){(t||l!=k.width||e!=k.height)&&kt(l,e),An(!1),mt=!0,pt=!0,Jn()}function kt(l,e){k.width=Fe=Ie=l,k.height=Ge=Le=e,Oe=Ne=0,function(){let l=!1,e=!1,t=!1,n=!1;xl.forEach((i=>{if(i.show&&i._show){let{side:o,_size:s}=i,r=s+(null!=i.label?i.labelSize:0);r>0&&(o%2?(Ie-=r,3==o?(Oe+=r,n=!0):t=!0):(Le-=r,0==o?(Ne+=r,l=!0):e=!0))}})),Ct[0]=l,Ct[1]=t,Ct[2]=e,Ct[3]=n,Ie-=Rt[1]+Rt[3],Oe+=Rt[3],Le-=Rt[2]+Rt[0],Ne+=Rt[0]}(),function(){let l=Oe+Ie,e=Ne+Le,t=Oe,n=Ne;function i(i,o){switch(i){case 1:return l+=o,l-o;case 2:return e+=o,e-o;case 3:return t-=o,t+o;case 0:return n-=o,n+o}}xl.forEach((l=>{if(l.show&&l._show){let e=l.side;l._pos=i(e,l._size),null!=l.label&&(l._lpos=i(e,l.labelSize))}}))}();let t=k.bbox;Qe=t.left=zl(Oe*y,.5),lt=t.top=zl(Ne*y,.5),ot=t.width=zl(Ie*y,.5),st=t.height=zl(Le*y,.5)}const yt=3;if(k.setSize=function({width:l,height:e}){vt(l,e)},null==oe.dataIdx){let l=oe.hover,e=l.skip=new Set(l.skip??[]);e.add(void 0);let t=l.prox=bl(l.prox),n=l.bias??=0;oe.dataIdx=(l,i,o,s)=>{if(0==i)return o;let r=o,u=t(l,i,o,s)??gl,a=u>=0&&gl>u,f=0==jl.ori?Ie:Le,c=oe.left,h=g[0],d=g[i];if(e.has(d[o])){r=null;let l,t=null,i=null;if(0==n||-1==n)for(l=o;null==t&&l-- >0;)e.has(d[l])||(t=l);if(0==n||1==n)for(l=o;null==i&&l++<d.length;)e.has(d[l])||(i=l);if(null!=t||null!=i)if(a){let l=c-(null==t?-1/0:$l(h[t],jl,f,0)),e=(null==i?1/0:$l(h[i],jl,f,0))-c;l>e?e>u||(r=i):l>u||(r=t)}else r=null==i?t:null==t||o-t>i-o?i:t}else a&&ol(c-$l(h[o],jl,f,0))>u&&(r=null);return r}}const Mt=l=>{oe.event=l};oe.idxs=te,oe._lock=!1;let St=oe.points;St.show=bl(St.show),St.size=bl(St.size),St.stroke=bl(St.stroke),St.width=bl(St.width),St.fill=bl(St.fill);const Tt=k.focus=Bl({},u.focus||{alpha:.3},oe.focus),Et=Tt.prox>=0,zt=Et&&St.one;let Dt=[],Pt=[],At=[];function Wt(l,e){let t=St.show(k,e);if(t instanceof HTMLElement)return S(t,"u-cursor-pt"),S(t,l.class),A(t,-10,-10,Ie,Le),el.insertBefore(t,Dt[e]),t}function Yt(t,n){if(1==M||n>0){let l=1==M&&vl[t.scale].time,e=t.value;t.value=l?Ll(e)?We(Xl,Ae(e,Zl)):e||ee:e||nt,t.label=t.label||(l?"Time":"Value")}if(zt||n>0){t.width=null==t.width?1:t.width,t.paths=t.paths||Ot||yl,t.fillTo=bl(t.fillTo||gt),t.pxAlign=+Q(t.pxAlign,tl),t.pxRound=bt(t.pxAlign),t.stroke=bl(t.stroke||null),t.fill=bl(t.fill||null),t._stroke=t._fill=t._paths=t._focus=null;let l=function(l){return Al(1*(3+2*(l||1)),3)}(fl(1,t.width)),e=t.points=Bl({},{size:l,width:fl(1,.2*l),stroke:t.stroke,space:2*l,paths:Nt,_stroke:null,_fill:null},t.points);e.show=bl(e.show),e.filter=bl(e.filter),e.fill=bl(e.fill),e.stroke=bl(e.stroke),e.paths=bl(e.paths),e.pxAlign=t.pxAlign}if(se){let i=function(t,n){if(0==n&&(xe||!ie.live||2==M))return Rl;let i=[],o=z("tr","u-series",de,de.childNodes[n]);S(o,t.class),t.show||S(o,l);let s=z("th",null,o);if(ue.show){let l=D("u-marker",s);if(n>0){let e=ue.width(k,n);e&&(l.style.border=e+"px "+ue.dash(k,n)+" "+ue.stroke(k,n)),l.style.background=ue.fill(k,n)}}let r=D(e,s);for(var u in t.label instanceof HTMLElement?r.appendChild(t.label):r.textContent=t.label,n>0&&(ue.show||(r.style.color=t.width>0?ue.stroke(k,n):ue.fill(k,n)),Ce("click",s,(l=>{if(oe._lock)return;Mt(l);let e=pl.indexOf(t);if((l.ctrlKey||l.metaKey)!=ie.isolate){let l=pl.some(((l,t)=>t>0&&t!=e&&l.show));pl.forEach(((t,n)=>{n>0&&oi(n,l?n==e?be:ve:be,!0,Fi.setSeries)}))}else oi(e,{show:!t.show},!0,Fi.setSeries)}),!1),Et&&Ce(d,s,(l=>{oe._lock||(Mt(l),oi(pl.indexOf(t),ai,!0,Fi.setSeries))}),!1)),pe){let l=z("td","u-value",o);l.textContent="--",i.push(l)}return[o,i]}(t,n);me.splice(n,0,i[0]),ge.splice(n,0,i[1]),ie.values.push(null)}if(re){te.splice(n,0,null);let l=null;zt?0==n&&(l=Wt(t,n)):n>0&&(l=Wt(t,n)),Dt.splice(n,0,l),Pt.splice(n,0,0),At.splice(n,0,0)}Ci("addSeries",n)}k.addSeries=function(l,e){e=null==e?pl.length:e,l=1==M?Ut(l,e,Ve,ut):Ut(l,e,{},rt),pl.splice(e,0,l),Yt(pl[e],e)},k.delSeries=function(l){if(pl.splice(l,1),se){ie.values.splice(l,1),ge.splice(l,1);let e=me.splice(l,1)[0];He(null,e.firstChild),e.remove()}re&&(te.splice(l,1),Dt.splice(l,1)[0].remove(),Pt.splice(l,1),At.splice(l,1)),Ci("delSeries",l)};const Ct=[!1,!1,!1,!1];function Ht(l,e,t){let[n,i,o,s]=t,r=e%2,u=0;return 0==r&&(s||i)&&(u=0==e&&!n||2==e&&!o?rl(Ue.size/3):0),1==r&&(n||o)&&(u=1==e&&!i||3==e&&!s?rl(it.size/2):0),u}const Ft=k.padding=(u.padding||[Ht,Ht,Ht,Ht]).map((l=>bl(Q(l,Ht)))),Rt=k._padding=Ft.map(((l,e)=>l(k,e,Ct,0)));let Gt,Lt=null,en=null;const tn=1==M?pl[0].idxs:null;let nn,on,sn,rn,un,an,fn,cn,hn,dn,pn=null,mn=!1;function gn(l,e){if(k.data=k._data=g=null==l?[]:l,2==M){Gt=0;for(let l=1;pl.length>l;l++)Gt+=g[l][0].length}else{0==g.length&&(k.data=k._data=g=[[]]),pn=g[0],Gt=pn.length;let l=g;if(2==Ul){l=g.slice();let e=l[0]=Array(Gt);for(let l=0;Gt>l;l++)e[l]=l}k._data=g=l}if(An(!0),Ci("setData"),2==Ul&&(mt=!0),!1!==e){let l=jl;l.auto(k,mn)?xn():ii(El,l.min,l.max),xt=xt||oe.left>=0,_t=!0,Jn()}}function xn(){let l,e;mn=!0,1==M&&(Gt>0?(Lt=tn[0]=0,en=tn[1]=Gt-1,l=g[0][Lt],e=g[0][en],2==Ul?(l=Lt,e=en):l==e&&(3==Ul?[l,e]=B(l,l,jl.log,!1):4==Ul?[l,e]=$(l,l,jl.log,!1):jl.time?e=l+rl(86400/hl):[l,e]=Z(l,e,J,!0))):(Lt=tn[0]=l=null,en=tn[1]=e=null)),ii(El,l,e)}function wn(l,e,t,n,i,o){l??=a,t??=Fl,n??="butt",i??=a,o??="round",l!=nn&&(K.strokeStyle=nn=l),i!=on&&(K.fillStyle=on=i),e!=sn&&(K.lineWidth=sn=e),o!=un&&(K.lineJoin=un=o),n!=an&&(K.lineCap=an=n),t!=rn&&K.setLineDash(rn=t)}function _n(l,e,t,n){e!=on&&(K.fillStyle=on=e),l!=fn&&(K.font=fn=l),t!=cn&&(K.textAlign=cn=t),n!=hn&&(K.textBaseline=hn=n)}function bn(l,e,t,n,i=0){if(n.length>0&&l.auto(k,mn)&&(null==e||null==e.min)){let e=Q(Lt,0),o=Q(en,n.length-1),s=null==t.min?function(l,e,t,n=0,i=!1){let o=i?V:U,s=i?j:N;[e,t]=o(l,e,t);let r=l[e],u=l[e];if(e>-1)if(1==n)r=l[e],u=l[t];else if(-1==n)r=l[t],u=l[e];else for(let n=e;t>=n;n++){let e=l[n];s(e)&&(r>e?r=e:e>u&&(u=e))}return[r??gl,u??-gl]}(n,e,o,i,3==l.distr):[t.min,t.max];l.min=al(l.min,t.min=s[0]),l.max=fl(l.max,t.max=s[1])}}k.setData=gn;const vn={min:null,max:null};function kn(l,e){let t=e?pl[l].points:pl[l];t._stroke=t.stroke(k,l),t._fill=t.fill(k,l)}function yn(l,e){let t=e?pl[l].points:pl[l],{stroke:n,fill:i,clip:o,flags:s,_stroke:r=t._stroke,_fill:u=t._fill,_width:a=t.width}=t._paths;a=Al(a*y,3);let f=null,c=a%2/2;e&&null==u&&(u=a>0?"#fff":r);let h=1==t.pxAlign&&c>0;if(h&&K.translate(c,c),!e){let l=Qe-a/2,e=lt-a/2,t=ot+a,n=st+a;f=new Path2D,f.rect(l,e,t,n)}e?Sn(r,a,t.dash,t.cap,u,n,i,s,o):function(l,e,t,n,i,o,s,r,u,a,f){let c=!1;0!=u&&Tl.forEach(((h,d)=>{if(h.series[0]==l){let l,p=pl[h.series[1]],m=g[h.series[1]],x=(p._paths||Hl).band;Gl(x)&&(x=1==h.dir?x[0]:x[1]);let w=null;p.show&&x&&function(l,e,t){for(e=Q(e,0),t=Q(t,l.length-1);t>=e;){if(null!=l[e])return!0;e++}return!1}(m,Lt,en)?(w=h.fill(k,d)||o,l=p._paths.clip):x=null,Sn(e,t,n,i,w,s,r,u,a,f,l,x),c=!0}})),c||Sn(e,t,n,i,o,s,r,u,a,f)}(l,r,a,t.dash,t.cap,u,n,i,s,f,o),h&&K.translate(-c,-c)}const Mn=3;function Sn(l,e,t,n,i,o,s,r,u,a,f,c){wn(l,e,t,n,i),(u||a||c)&&(K.save(),u&&K.clip(u),a&&K.clip(a)),c?(r&Mn)==Mn?(K.clip(c),f&&K.clip(f),En(i,s),Tn(l,o,e)):2&r?(En(i,s),K.clip(c),Tn(l,o,e)):1&r&&(K.save(),K.clip(c),f&&K.clip(f),En(i,s),K.restore(),Tn(l,o,e)):(En(i,s),Tn(l,o,e)),(u||a||c)&&K.restore()}function Tn(l,e,t){t>0&&(e instanceof Map?e.forEach(((l,e)=>{K.strokeStyle=nn=e,K.stroke(l)})):null!=e&&l&&K.stroke(e))}function En(l,e){e instanceof Map?e.forEach(((l,e)=>{K.fillStyle=on=e,K.fill(l)})):null!=e&&l&&K.fill(e)}function zn(l,e,t,n,i,o,s,r,u,a){let f=s%2/2;1==tl&&K.translate(f,f),wn(r,s,u,a,r),K.beginPath();let c,h,d,p,m=i+(0==n||3==n?-o:o);0==t?(h=i,p=m):(c=i,d=m);for(let n=0;l.length>n;n++)null!=e[n]&&(0==t?c=d=l[n]:h=p=l[n],K.moveTo(c,h),K.lineTo(d,p));K.stroke(),1==tl&&K.translate(-f,-f)}function Dn(l){let e=!0;return xl.forEach(((t,n)=>{if(!t.show)return;let i=vl[t.scale];if(null==i.min)return void(t._show&&(e=!1,t._show=!1,An(!1)));t._show||(e=!1,t._show=!0,An(!1));let o=t.side,s=o%2,{min:r,max:u}=i,[a,f]=function(l,e,t,n){let i,o=xl[l];if(n>0){let s=o._space=o.space(k,l,e,t,n);i=Zt(e,t,o._incrs=o.incrs(k,l,e,t,n,s),n,s)}else i=[0,0];return o._found=i}(n,r,u,0==s?Ie:Le);if(0==f)return;let c=t._splits=t.splits(k,n,r,u,a,f,2==i.distr),h=2==i.distr?c.map((l=>pn[l])):c,d=2==i.distr?pn[c[1]]-pn[c[0]]:a,p=t._values=t.values(k,t.filter(k,h,n,f,d),n,f,d);t._rotate=2==o?t.rotate(k,p,n,f):0;let m=t._size;t._size=ul(t.size(k,p,n,l)),null!=m&&t._size!=m&&(e=!1)})),e}function Pn(l){let e=!0;return Ft.forEach(((t,n)=>{let i=t(k,n,Ct,l);i!=Rt[n]&&(e=!1),Rt[n]=i})),e}function An(l){pl.forEach(((e,t)=>{t>0&&(e._paths=null,l&&(1==M?(e.min=null,e.max=null):e.facets.forEach((l=>{l.min=null,l.max=null}))))}))}let Wn,Yn,Cn,Hn,Fn,Rn,Gn,In,Ln,On,Nn,jn,Un=!1,Vn=!1,Bn=[];function $n(){Vn=!1;for(let l=0;Bn.length>l;l++)Ci(...Bn[l]);Bn.length=0}function Jn(){Un||(Jl(qn),Un=!0)}function qn(){if(ht&&(function(){for(let l in vl){let e=vl[l];null==Kl[l]&&(null==e.min||null!=Kl[El]&&e.auto(k,mn))&&(Kl[l]=vn)}for(let l in vl){let e=vl[l];null==Kl[l]&&null!=e.from&&null!=Kl[e.from]&&(Kl[l]=vn)}null!=Kl[El]&&An(!0);let l={};for(let e in Kl){let t=Kl[e];if(null!=t){let n=l[e]=Vl(vl[e],Nl);if(null!=t.min)Bl(n,t);else if(e!=El||2==M)if(0==Gt&&null==n.from){let l=n.range(k,null,null,e);n.min=l[0],n.max=l[1]}else n.min=gl,n.max=-gl}}if(Gt>0){pl.forEach(((e,t)=>{if(1==M){let n=e.scale,i=Kl[n];if(null==i)return;let o=l[n];if(0==t){let l=o.range(k,o.min,o.max,n);o.min=l[0],o.max=l[1],Lt=L(o.min,g[0]),en=L(o.max,g[0]),en-Lt>1&&(o.min>g[0][Lt]&&Lt++,g[0][en]>o.max&&en--),e.min=pn[Lt],e.max=pn[en]}else e.show&&e.auto&&bn(o,i,e,g[t],e.sorted);e.idxs[0]=Lt,e.idxs[1]=en}else if(t>0&&e.show&&e.auto){let[n,i]=e.facets,o=n.scale,s=i.scale,[r,u]=g[t],a=l[o],f=l[s];null!=a&&bn(a,Kl[o],n,r,n.sorted),null!=f&&bn(f,Kl[s],i,u,i.sorted),e.min=i.min,e.max=i.max}}));for(let e in l){let t=l[e],n=Kl[e];if(null==t.from&&(null==n||null==n.min)){let l=t.range(k,t.min==gl?null:t.min,t.max==-gl?null:t.max,e);t.min=l[0],t.max=l[1]}}}for(let e in l){let t=l[e];if(null!=t.from){let n=l[t.from];if(null==n.min)t.min=t.max=null;else{let l=t.range(k,n.min,n.max,e);t.min=l[0],t.max=l[1]}}}let e={},t=!1;for(let n in l){let i=l[n],o=vl[n];if(o.min!=i.min||o.max!=i.max){o.min=i.min,o.max=i.max;let l=o.distr;o._min=3==l?dl(o.min):4==l?ml(o.min,o.asinh):100==l?o.fwd(o.min):o.min,o._max=3==l?dl(o.max):4==l?ml(o.max,o.asinh):100==l?o.fwd(o.max):o.max,e[n]=t=!0}}if(t){pl.forEach(((l,t)=>{2==M?t>0&&e.y&&(l._paths=null):e[l.scale]&&(l._paths=null)}));for(let l in e)mt=!0,Ci("setScale",l);re&&oe.left>=0&&(xt=_t=!0)}for(let l in Kl)Kl[l]=null}(),ht=!1),mt&&(function(){let l=!1,e=0;for(;!l;){e++;let t=Dn(e),n=Pn(e);l=e==yt||t&&n,l||(kt(k.width,k.height),pt=!0)}}(),mt=!1),pt){if(E(ll,s,Oe),E(ll,i,Ne),E(ll,t,Ie),E(ll,n,Le),E(el,s,Oe),E(el,i,Ne),E(el,t,Ie),E(el,n,Le),E(X,t,Fe),E(X,n,Ge),O.width=rl(Fe*y),O.height=rl(Ge*y),xl.forEach((({_el:e,_show:t,_size:n,_pos:i,side:o})=>{if(null!=e)if(t){let t=o%2==1;E(e,t?"left":"top",i-(3===o||0===o?n:0)),E(e,t?"width":"height",n),E(e,t?"top":"left",t?Ne:Oe),E(e,t?"height":"width",t?Le:Ie),T(e,l)}else S(e,l)})),nn=on=sn=un=an=fn=cn=hn=rn=null,dn=1,_i(!0),Oe!=je||Ne!=Ke||Ie!=Xe||Le!=Ze){An(!1);let l=Ie/Xe,e=Le/Ze;if(re&&!xt&&oe.left>=0){oe.left*=l,oe.top*=e,Cn&&A(Cn,rl(oe.left),0,Ie,Le),Hn&&A(Hn,0,rl(oe.top),Ie,Le);for(let t=0;Dt.length>t;t++){let n=Dt[t];null!=n&&(Pt[t]*=l,At[t]*=e,A(n,ul(Pt[t]),ul(At[t]),Ie,Le))}}if(ei.show&&!wt&&ei.left>=0&&ei.width>0){ei.left*=l,ei.width*=l,ei.top*=e,ei.height*=e;for(let l in ki)E(ti,l,ei[l])}je=Oe,Ke=Ne,Xe=Ie,Ze=Le}Ci("setSize"),pt=!1}Fe>0&&Ge>0&&(K.clearRect(0,0,O.width,O.height),Ci("drawClear"),Pl.forEach((l=>l())),Ci("draw")),ei.show&&wt&&(ni(ei),wt=!1),re&&xt&&(xi(null,!0,!1),xt=!1),ie.show&&ie.live&&_t&&(mi(),_t=!1),F||(F=!0,k.status=1,Ci("ready")),mn=!1,Un=!1}function Kn(l,e){let t=vl[l];if(null==t.from){if(0==Gt){let n=t.range(k,e.min,e.max,l);e.min=n[0],e.max=n[1]}if(e.min>e.max){let l=e.min;e.min=e.max,e.max=l}if(Gt>1&&null!=e.min&&null!=e.max&&1e-16>e.max-e.min)return;l==El&&2==t.distr&&Gt>0&&(e.min=L(e.min,g[0]),e.max=L(e.max,g[0]),e.min==e.max&&e.max++),Kl[l]=e,ht=!0,Jn()}}k.batch=function(l,e=!1){Un=!0,Vn=e,l(k),qn(),e&&Bn.length>0&&queueMicrotask($n)},k.redraw=(l,e)=>{mt=e||!1,!1!==l?ii(El,jl.min,jl.max):Jn()},k.setScale=Kn;let Xn=!1;const Zn=oe.drag;let Qn=Zn.x,li=Zn.y;re&&(oe.x&&(Wn=D("u-cursor-x",el)),oe.y&&(Yn=D("u-cursor-y",el)),0==jl.ori?(Cn=Wn,Hn=Yn):(Cn=Yn,Hn=Wn),Nn=oe.left,jn=oe.top);const ei=k.select=Bl({show:!0,over:!0,left:0,width:0,top:0,height:0},u.select),ti=ei.show?D("u-select",ei.over?el:ll):null;function ni(l,e){if(ei.show){for(let e in l)ei[e]=l[e],e in ki&&E(ti,e,l[e]);!1!==e&&Ci("setSelect")}}function ii(l,e,t){Kn(l,{min:e,max:t})}function oi(e,t,n,i){null!=t.focus&&function(l){if(l!=ui){let e=null==l,t=1!=Tt.alpha;pl.forEach(((n,i)=>{if(1==M||i>0){let o=e||0==i||i==l;n._focus=e?null:o,t&&function(l,e){pl[l].alpha=e,re&&null!=Dt[l]&&(Dt[l].style.opacity=e),se&&me[l]&&(me[l].style.opacity=e)}(i,o?1:Tt.alpha)}})),ui=l,t&&Jn()}}(e),null!=t.show&&pl.forEach(((n,i)=>{0>=i||e!=i&&null!=e||(n.show=t.show,function(e){if(pl[e].show)se&&T(me[e],l);else if(se&&S(me[e],l),re){let l=zt?Dt[0]:Dt[e];null!=l&&A(l,-10,-10,Ie,Le)}}(i),2==M?(ii(n.facets[0].scale,null,null),ii(n.facets[1].scale,null,null)):ii(n.scale,null,null),Jn())})),!1!==n&&Ci("setSeries",e,t),i&&Ii("setSeries",k,e,t)}let si,ri,ui;k.setSelect=ni,k.setSeries=oi,k.addBand=function(l,e){l.fill=bl(l.fill||null),l.dir=Q(l.dir,-1),Tl.splice(e=null==e?Tl.length:e,0,l)},k.setBand=function(l,e){Bl(Tl[l],e)},k.delBand=function(l){null==l?Tl.length=0:Tl.splice(l,1)};const ai={focus:!0};function fi(l,e,t){let n=vl[e];t&&(l=l/y-(1==n.ori?Ne:Oe));let i=Ie;1==n.ori&&(i=Le,l=i-l),-1==n.dir&&(l=i-l);let o=n._min,s=o+l/i*(n._max-o),r=n.distr;return 3==r?cl(10,s):4==r?((l,e=1)=>nl.sinh(l)*e)(s,n.asinh):100==r?n.bwd(s):s}function ci(l,e){E(ti,s,ei.left=l),E(ti,t,ei.width=e)}function hi(l,e){E(ti,i,ei.top=l),E(ti,n,ei.height=e)}se&&Et&&Ce(p,ce,(l=>{oe._lock||(Mt(l),null!=ui&&oi(null,ai,!0,Fi.setSeries))})),k.valToIdx=l=>L(l,g[0]),k.posToIdx=function(l,e){return L(fi(l,El,e),g[0],Lt,en)},k.posToVal=fi,k.valToPos=(l,e,t)=>0==vl[e].ori?P(l,vl[e],t?ot:Ie,t?Qe:0):W(l,vl[e],t?st:Le,t?lt:0),k.setCursor=(l,e,t)=>{Nn=l.left,jn=l.top,xi(null,e,t)};let di=0==jl.ori?ci:hi,pi=1==jl.ori?ci:hi;function mi(l,e){if(null!=l&&(l.idxs?l.idxs.forEach(((l,e)=>{te[e]=l})):(l=>void 0===l)(l.idx)||te.fill(l.idx),ie.idx=te[0]),se&&ie.live){for(let l=0;pl.length>l;l++)(l>0||1==M&&!xe)&&gi(l,te[l]);!function(){if(se&&ie.live)for(let l=2==M?1:0;pl.length>l;l++){if(0==l&&xe)continue;let e=ie.values[l],t=0;for(let n in e)ge[l][t++].firstChild.nodeValue=e[n]}}()}_t=!1,!1!==e&&Ci("setLegend")}function gi(l,e){let t,n=pl[l],i=0==l&&2==Ul?pn:g[l];xe?t=n.values(k,l,e)??we:(t=n.value(k,null==e?null:i[e],l,e),t=null==t?we:{_:t}),ie.values[l]=t}function xi(l,e,t){let n;Ln=Nn,On=jn,[Nn,jn]=oe.move(k,Nn,jn),oe.left=Nn,oe.top=jn,re&&(Cn&&A(Cn,rl(Nn),0,Ie,Le),Hn&&A(Hn,0,rl(jn),Ie,Le)),si=gl,ri=null;let i=0==jl.ori?Ie:Le,o=1==jl.ori?Ie:Le;if(0>Nn||0==Gt||Lt>en){n=oe.idx=null;for(let l=0;pl.length>l;l++){let e=Dt[l];null!=e&&A(e,-10,-10,Ie,Le)}Et&&oi(null,ai,!0,null==l&&Fi.setSeries),ie.live&&(te.fill(n),_t=!0)}else{let l,e,t;1==M&&(l=0==jl.ori?Nn:jn,e=fi(l,El),n=oe.idx=L(e,g[0],Lt,en),t=$l(g[0][n],jl,i,0));let s=-10,r=-10,u=0,a=0,f=!0,c="",h="";for(let l=2==M?1:0;pl.length>l;l++){let d=pl[l],p=te[l],m=null==p?null:1==M?g[l][p]:g[l][1][p],x=oe.dataIdx(k,l,n,e),w=null==x?null:1==M?g[l][x]:g[l][1][x];if(_t=_t||w!=m||x!=p,te[l]=x,l>0&&d.show){let e=null==x?-10:x==n?t:$l(1==M?g[0][x]:g[l][0][x],jl,i,0),p=null==w?-10:ql(w,1==M?vl[d.scale]:vl[d.facets[1].scale],o,0);if(Et&&null!=w){let e=1==jl.ori?Nn:jn,t=ol(Tt.dist(k,l,x,p,e));if(si>t){let n=Tt.bias;if(0!=n){let i=fi(e,d.scale),o=0>i?-1:1;o!=(0>w?-1:1)||(1==o?1==n?i>w:w>i:1==n?w>i:i>w)||(si=t,ri=l)}else si=t,ri=l}}if(_t||zt){let t,n;0==jl.ori?(t=e,n=p):(t=p,n=e);let i,o,d,m,g,x,w=!0,_=St.bbox;if(null!=_){w=!1;let e=_(k,l);d=e.left,m=e.top,i=e.width,o=e.height}else d=t,m=n,i=o=St.size(k,l);if(x=St.fill(k,l),g=St.stroke(k,l),zt)l!=ri||si>Tt.prox||(s=d,r=m,u=i,a=o,f=w,c=x,h=g);else{let e=Dt[l];null!=e&&(Pt[l]=d,At[l]=m,H(e,i,o,w),Y(e,x,g),A(e,ul(d),ul(m),Ie,Le))}}}}if(zt){let l=Tt.prox;if(_t||(null==ui?l>=si:si>l||ri!=ui)){let l=Dt[0];null!=l&&(Pt[0]=s,At[0]=r,H(l,u,a,f),Y(l,c,h),A(l,ul(s),ul(r),Ie,Le))}}}if(ei.show&&Xn)if(null!=l){let[e,t]=Fi.scales,[n,s]=Fi.match,[r,u]=l.cursor.sync.scales,a=l.cursor.drag;if(Qn=a._x,li=a._y,Qn||li){let a,f,c,h,d,{left:p,top:m,width:g,height:x}=l.select,w=l.scales[r].ori,_=l.posToVal,b=null!=e&&n(e,r),v=null!=t&&s(t,u);b&&Qn?(0==w?(a=p,f=g):(a=m,f=x),c=vl[e],h=$l(_(a,r),c,i,0),d=$l(_(a+f,r),c,i,0),di(al(h,d),ol(d-h))):di(0,i),v&&li?(1==w?(a=p,f=g):(a=m,f=x),c=vl[t],h=ql(_(a,u),c,o,0),d=ql(_(a+f,u),c,o,0),pi(al(h,d),ol(d-h))):pi(0,o)}else yi()}else{let l=ol(Ln-Fn),e=ol(On-Rn);if(1==jl.ori){let t=l;l=e,e=t}Qn=Zn.x&&l>=Zn.dist,li=Zn.y&&e>=Zn.dist;let t,n,s=Zn.uni;null!=s?Qn&&li&&(Qn=l>=s,li=e>=s,Qn||li||(e>l?li=!0:Qn=!0)):Zn.x&&Zn.y&&(Qn||li)&&(Qn=li=!0),Qn&&(0==jl.ori?(t=Gn,n=Nn):(t=In,n=jn),di(al(t,n),ol(n-t)),li||pi(0,o)),li&&(1==jl.ori?(t=Gn,n=Nn):(t=In,n=jn),pi(al(t,n),ol(n-t)),Qn||di(0,i)),Qn||li||(di(0,0),pi(0,0))}if(Zn._x=Qn,Zn._y=li,null==l){if(t){if(null!=Ri){let[l,e]=Fi.scales;Fi.values[0]=null!=l?fi(0==jl.ori?Nn:jn,l):null,Fi.values[1]=null!=e?fi(1==jl.ori?Nn:jn,e):null}Ii(f,k,Nn,jn,Ie,Le,n)}if(Et){let l=t&&Fi.setSeries,e=Tt.prox;null==ui?si>e||oi(ri,ai,!0,l):si>e?oi(null,ai,!0,l):ri!=ui&&oi(ri,ai,!0,l)}}_t&&(ie.idx=n,mi()),!1!==e&&Ci("setCursor")}k.setLegend=mi;let wi=null;function _i(l=!1){l?wi=null:(wi=el.getBoundingClientRect(),Ci("syncRect",wi))}function bi(l,e,t,n,i,o){oe._lock||Xn&&null!=l&&0==l.movementX&&0==l.movementY||(vi(l,e,t,n,i,o,0,!1,null!=l),null!=l?xi(null,!0,!0):xi(e,!0,!1))}function vi(l,e,t,n,i,o,s,r,u){if(null==wi&&_i(!1),Mt(l),null!=l)t=l.clientX-wi.left,n=l.clientY-wi.top;else{if(0>t||0>n)return Nn=-10,void(jn=-10);let[l,s]=Fi.scales,r=e.cursor.sync,[u,a]=r.values,[f,c]=r.scales,[h,d]=Fi.match,p=e.axes[0].side%2==1,m=0==jl.ori?Ie:Le,g=1==jl.ori?Ie:Le,x=p?o:i,w=p?i:o,_=p?n:t,b=p?t:n;if(t=null!=f?h(l,f)?C(u,vl[l],m,0):-10:m*(_/x),n=null!=c?d(s,c)?C(a,vl[s],g,0):-10:g*(b/w),1==jl.ori){let l=t;t=n,n=l}}!u||null!=e&&e.cursor.event.type!=f||(t>1&&Ie-1>t||(t=zl(t,Ie)),n>1&&Le-1>n||(n=zl(n,Le))),r?(Fn=t,Rn=n,[Gn,In]=oe.move(k,t,n)):(Nn=t,jn=n)}Object.defineProperty(k,"rect",{get:()=>(null==wi&&_i(!1),wi)});const ki={width:0,height:0,left:0,top:0};function yi(){ni(ki,!1)}let Mi,Si,Ti,Ei;function zi(l,e,t,n,i,o){Xn=!0,Qn=li=Zn._x=Zn._y=!1,vi(l,e,t,n,i,o,0,!0,!1),null!=l&&(Ce(h,b,Di,!1),Ii(c,k,Gn,In,Ie,Le,null));let{left:s,top:r,width:u,height:a}=ei;Mi=s,Si=r,Ti=u,Ei=a}function Di(l,e,t,n,i,o){Xn=Zn._x=Zn._y=!1,vi(l,e,t,n,i,o,0,!1,!0);let{left:s,top:r,width:u,height:a}=ei,f=u>0||a>0,c=Mi!=s||Si!=r||Ti!=u||Ei!=a;if(f&&c&&ni(ei),Zn.setScale&&f&&c){let l=s,e=u,t=r,n=a;if(1==jl.ori&&(l=r,e=a,t=s,n=u),Qn&&ii(El,fi(l,El),fi(l+e,El)),li)for(let l in vl){let e=vl[l];l!=El&&null==e.from&&e.min!=gl&&ii(l,fi(t+n,l),fi(t,l))}yi()}else oe.lock&&(oe._lock=!oe._lock,xi(e,!0,null!=l));null!=l&&(He(h,b),Ii(h,k,Nn,jn,Ie,Le,null))}function Pi(l){oe._lock||(Mt(l),xn(),yi(),null!=l&&Ii(m,k,Nn,jn,Ie,Le,null))}function Ai(){xl.forEach(ln),vt(k.width,k.height,!0)}G(x,v,Ai);const Wi={};Wi.mousedown=zi,Wi.mousemove=bi,Wi.mouseup=Di,Wi.dblclick=Pi,Wi.setSeries=(l,e,t,n)=>{-1!=(t=(0,Fi.match[2])(k,e,t))&&oi(t,n,!0,!1)},re&&(Ce(c,el,zi),Ce(f,el,bi),Ce(d,el,(l=>{Mt(l),_i(!1)})),Ce(p,el,(function(l){if(oe._lock)return;Mt(l);let e=Xn;if(Xn){let l,e,t=!0,n=!0,i=10;0==jl.ori?(l=Qn,e=li):(l=li,e=Qn),l&&e&&(t=i>=Nn||Nn>=Ie-i,n=i>=jn||jn>=Le-i),l&&t&&(Nn=Gn>Nn?0:Ie),e&&n&&(jn=In>jn?0:Le),xi(null,!0,!0),Xn=!1}Nn=-10,jn=-10,te.fill(null),xi(null,!0,!0),e&&(Xn=e)})),Ce(m,el,Pi),It.add(k),k.syncRect=_i);const Yi=k.hooks=u.hooks||{};function Ci(l,e,t){Vn?Bn.push([l,e,t]):l in Yi&&Yi[l].forEach((l=>{l.call(null,k,e,t)}))}(u.plugins||[]).forEach((l=>{for(let e in l.hooks)Yi[e]=(Yi[e]||[]).concat(l.hooks[e])}));const Hi=(l,e,t)=>t,Fi=Bl({key:null,setSeries:!1,filters:{pub:Ml,sub:Ml},scales:[El,pl[1]?pl[1].scale:null],match:[Sl,Sl,Hi],values:[null,null]},oe.sync);2==Fi.match.length&&Fi.match.push(Hi),oe.sync=Fi;const Ri=Fi.key,Gi=dt(Ri);function Ii(l,e,t,n,i,o,s){Fi.filters.pub(l,e,t,n,i,o,s)&&Gi.pub(l,e,t,n,i,o,s)}function Li(){Ci("init",u,g),gn(g||u.data,!1),Kl[El]?Kn(El,Kl[El]):xn(),wt=ei.show&&(ei.width>0||ei.height>0),xt=_t=!0,vt(u.width,u.height)}return Gi.sub(k),k.pub=function(l,e,t,n,i,o,s){Fi.filters.sub(l,e,t,n,i,o,s)&&Wi[l](null,e,t,n,i,o,s)},k.destroy=function(){Gi.unsub(k),It.delete(k),Pe.clear(),I(x,v,Ai),R.remove(),ce?.remove(),Ci("destroy")},pl.forEach(Yt),xl.forEach((function(l,e){if(l._show=l.show,l.show){let t=vl[l.scale];null==t&&(l.scale=l.side%2?pl[1].scale:El,t=vl[l.scale]);let n=t.time;l.size=bl(l.size),l.space=bl(l.space),l.rotate=bl(l.rotate),Gl(l.incrs)&&l.incrs.forEach((l=>{!Wl.has(l)&&Wl.set(l,Yl(l))})),l.incrs=bl(l.incrs||(2==t.distr?ae:n?1==hl?ke:Se:fe)),l.splits=bl(l.splits||(n&&1==t.distr?Ql:3==t.distr?Je:4==t.distr?qe:$e)),l.stroke=bl(l.stroke),l.grid.stroke=bl(l.grid.stroke),l.ticks.stroke=bl(l.ticks.stroke),l.border.stroke=bl(l.border.stroke);let i=l.values;l.values=Gl(i)&&!Gl(i[0])?bl(i):n?Gl(i)?De(Xl,ze(i,Zl)):Ll(i)?function(l,e){let t=ne(e);return(e,n)=>n.map((e=>t(l(e))))}(Xl,i):i||le:i||Be,l.filter=bl(l.filter||(3>t.distr||10!=t.log?3==t.distr&&2==t.log?tt:kl:et)),l.font=Qt(l.font),l.labelFont=Qt(l.labelFont),l._size=l.size(k,null,e,0),l._space=l._rotate=l._incrs=l._found=l._splits=l._values=null,l._size>0&&(Ct[e]=!0,l._el=D("u-axis",X))}})),_?_ instanceof HTMLElement?(_.appendChild(R),Li()):_(k,Li):Li(),k}en.assign=Bl,en.fmtNum=tl,en.rangeNum=Z,en.rangeLog=B,en.rangeAsinh=$,en.orient=pt,en.pxRatio=y,en.join=function(l,e){if(function(l){let e=l[0][0],t=e.length;for(let n=1;l.length>n;n++){let i=l[n][0];if(i.length!=t)return!1;if(i!=e)for(let l=0;t>l;l++)if(i[l]!=e[l])return!1}return!0}(l)){let e=l[0].slice();for(let t=1;l.length>t;t++)e.push(...l[t].slice(1));return function(l,e=100){const t=l.length;if(1>=t)return!0;let n=0,i=t-1;for(;i>=n&&null==l[n];)n++;for(;i>=n&&null==l[i];)i--;if(n>=i)return!0;const o=fl(1,sl((i-n+1)/e));for(let e=l[n],t=n+o;i>=t;t+=o){const n=l[t];if(null!=n){if(e>=n)return!1;e=n}}return!0}(e[0])||(e=function(l){let e=l[0],t=e.length,n=Array(t);for(let l=0;n.length>l;l++)n[l]=l;n.sort(((l,t)=>e[l]-e[t]));let i=[];for(let e=0;l.length>e;e++){let o=l[e],s=Array(t);for(let l=0;t>l;l++)s[l]=o[n[l]];i.push(s)}return i}(e)),e}let t=new Set;for(let e=0;l.length>e;e++){let n=l[e][0],i=n.length;for(let l=0;i>l;l++)t.add(n[l])}let n=[Array.from(t).sort(((l,e)=>l-e))],i=n[0].length,o=new Map;for(let l=0;i>l;l++)o.set(n[0][l],l);for(let t=0;l.length>t;t++){let s=l[t],r=s[0];for(let l=1;s.length>l;l++){let u=s[l],a=Array(i).fill(void 0),f=e?e[t][l]:1,c=[];for(let l=0;u.length>l;l++){let e=u[l],t=o.get(r[l]);null===e?0!=f&&(a[t]=e,2==f&&c.push(t)):a[t]=e}$l(a,c,i),n.push(a)}}return n},en.fmtDate=ne,en.tzDate=function(l,e){let t;return"UTC"==e||"Etc/UTC"==e?t=new Date(+l+6e4*l.getTimezoneOffset()):e==ie?t=l:(t=new Date(l.toLocaleString("en-US",{timeZone:e})),t.setMilliseconds(l.getMilliseconds())),t},en.sync=dt;{en.addGap=function(l,e,t){let n=l[l.length-1];n&&n[0]==e?n[1]=t:l.push([e,t])},en.clipGaps=wt;let l=en.paths={points:Wt};l.linear=Ft,l.stepped=function(l){const e=Q(l.align,1),t=Q(l.ascDesc,!1),n=Q(l.alignGaps,0),i=Q(l.extend,!1);return(l,o,s,r)=>pt(l,o,((u,a,f,c,h,d,p,m,g,x,w)=>{[s,r]=U(f,s,r);let _=u.pxRound,{left:b,width:v}=l.bbox,k=l=>_(d(l,c,x,m)),M=l=>_(p(l,h,w,g)),S=0==c.ori?Mt:St;const T={stroke:new Path2D,fill:null,clip:null,band:null,gaps:null,flags:1},E=T.stroke,z=c.dir*(0==c.ori?1:-1);let D=M(f[1==z?s:r]),P=k(a[1==z?s:r]),A=P,W=P;i&&-1==e&&(W=b,S(E,W,D)),S(E,P,D);for(let l=1==z?s:r;l>=s&&r>=l;l+=z){let t=f[l];if(null==t)continue;let n=k(a[l]),i=M(t);1==e?S(E,n,D):S(E,A,i),S(E,n,i),D=i,A=n}let Y=A;i&&1==e&&(Y=b+v,S(E,Y,D));let[C,H]=mt(l,o);if(null!=u.fill||0!=C){let e=T.fill=new Path2D(E),t=M(u.fillTo(l,o,u.min,u.max,C));S(e,Y,t),S(e,W,t)}if(!u.spanGaps){let i=[];i.push(..._t(a,f,s,r,z,k,n));let h=u.width*y/2,d=t||1==e?h:-h,p=t||-1==e?-h:h;i.forEach((l=>{l[0]+=d,l[1]+=p})),T.gaps=i=u.gaps(l,o,s,r,i),T.clip=wt(i,c.ori,m,g,x,w)}return 0!=H&&(T.band=2==H?[xt(l,o,s,r,E,-1),xt(l,o,s,r,E,1)]:xt(l,o,s,r,E,H)),T}))},l.bars=function(l){const e=Q((l=l||Hl).size,[.6,gl,1]),t=l.align||0,n=l.gap||0;let i=l.radius;i=null==i?[0,0]:"number"==typeof i?[i,0]:i;const o=bl(i),s=1-e[0],r=Q(e[1],gl),u=Q(e[2],1),a=Q(l.disp,Hl),f=Q(l.each,(()=>{})),{fill:c,stroke:h}=a;return(l,e,i,d)=>pt(l,e,((p,m,g,x,w,_,b,v,k,M,S)=>{let T,E,z=p.pxRound,D=t,P=n*y,A=r*y,W=u*y;0==x.ori?[T,E]=o(l,e):[E,T]=o(l,e);const Y=x.dir*(0==x.ori?1:-1);let C,H,F,R=0==x.ori?Tt:Et,G=0==x.ori?f:(l,e,t,n,i,o,s)=>{f(l,e,t,i,n,s,o)},I=Q(l.bands,Fl).find((l=>l.series[0]==e)),L=p.fillTo(l,e,p.min,p.max,null!=I?I.dir:0),O=z(b(L,w,S,k)),N=M,j=z(p.width*y),U=!1,V=null,B=null,$=null,J=null;null==c||0!=j&&null==h||(U=!0,V=c.values(l,e,i,d),B=new Map,new Set(V).forEach((l=>{null!=l&&B.set(l,new Path2D)})),j>0&&($=h.values(l,e,i,d),J=new Map,new Set($).forEach((l=>{null!=l&&J.set(l,new Path2D)}))));let{x0:q,size:K}=a;if(null!=q&&null!=K){D=1,m=q.values(l,e,i,d),2==q.unit&&(m=m.map((e=>l.posToVal(v+e*M,x.key,!0))));let t=K.values(l,e,i,d);H=2==K.unit?t[0]*M:_(t[0],x,M,v)-_(0,x,M,v),N=Rt(m,g,_,x,M,v,N),F=N-H+P}else N=Rt(m,g,_,x,M,v,N),F=N*s+P,H=N-F;1>F&&(F=0),H/2>j||(j=0),5>F&&(z=vl);let X=F>0;H=z(wl(N-F-(X?j:0),W,A)),C=(0==D?H/2:D==Y?0:H)-D*Y*((0==D?P/2:0)+(X?j/2:0));const Z={stroke:null,fill:null,clip:null,band:null,gaps:null,flags:0},ll=U?null:new Path2D;let el=null;if(null!=I)el=l.data[I.series[1]];else{let{y0:t,y1:n}=a;null!=t&&null!=n&&(g=n.values(l,e,i,d),el=t.values(l,e,i,d))}let tl=T*H,nl=E*H;for(let t=1==Y?i:d;t>=i&&d>=t;t+=Y){let n=g[t];if(null==n)continue;if(null!=el){let l=el[t]??0;if(n-l==0)continue;O=b(l,w,S,k)}let i=_(2!=x.distr||null!=a?m[t]:t,x,M,v),o=b(Q(n,L),w,S,k),s=z(i-C),r=z(fl(o,O)),u=z(al(o,O)),f=r-u;if(null!=n){let i=0>n?nl:tl,o=0>n?tl:nl;U?(j>0&&null!=$[t]&&R(J.get($[t]),s,u+sl(j/2),H,fl(0,f-j),i,o),null!=V[t]&&R(B.get(V[t]),s,u+sl(j/2),H,fl(0,f-j),i,o)):R(ll,s,u+sl(j/2),H,fl(0,f-j),i,o),G(l,e,t,s-j/2,u,H+j,f)}}return j>0?Z.stroke=U?J:ll:U||(Z._fill=0==p.width?p._fill:p._stroke??p._fill,Z.width=0),Z.fill=U?B:ll,Z}))},l.spline=function(l){return function(l,e){const t=Q(e?.alignGaps,0);return(e,n,i,o)=>pt(e,n,((s,r,u,a,f,c,h,d,p,m,g)=>{[i,o]=U(u,i,o);let x,w,_,b=s.pxRound,v=l=>b(c(l,a,m,d)),k=l=>b(h(l,f,g,p));0==a.ori?(x=kt,_=Mt,w=Pt):(x=yt,_=St,w=At);const y=a.dir*(0==a.ori?1:-1);let M=v(r[1==y?i:o]),S=M,T=[],E=[];for(let l=1==y?i:o;l>=i&&o>=l;l+=y)if(null!=u[l]){let e=v(r[l]);T.push(S=e),E.push(k(u[l]))}const z={stroke:l(T,E,x,_,w,b),fill:null,clip:null,band:null,gaps:null,flags:1},D=z.stroke;let[P,A]=mt(e,n);if(null!=s.fill||0!=P){let l=z.fill=new Path2D(D),t=k(s.fillTo(e,n,s.min,s.max,P));_(l,S,t),_(l,M,t)}if(!s.spanGaps){let l=[];l.push(..._t(r,u,i,o,y,v,t)),z.gaps=l=s.gaps(e,n,i,o,l),z.clip=wt(l,a.ori,d,p,m,g)}return 0!=A&&(z.band=2==A?[xt(e,n,i,o,D,-1),xt(e,n,i,o,D,1)]:xt(e,n,i,o,D,A)),z}))}(Gt,l)}}return en}();
(() => {
"use strict";
// --- colours.js
// The colours of the page, which follow the system's light or dark.

/** @type {Record<string, {light: string, dark: string, mark: "up" | "down" | "square" | "circle"}>} */
const VERDICTS = {
  supported: { light: "#00724f", dark: "#35c193", mark: "up" },
  opposite: { light: "#b2182b", dark: "#ff8a7a", mark: "down" },
  negligible: { light: "#0060a0", dark: "#6db6ee", mark: "square" },
  other: { light: "#77726a", dark: "#a39d92", mark: "circle" },
};
const LIKE = /** @type {Record<string, string>} */ ({ holds: "supported", fails: "opposite" });

/** Whether the page is dark now. */
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

/** Return a colour of the style, by the name of its variable. @param {string} name */
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function verdictLook(/** @type {string} */ verdict) {
  const { light, dark, mark } = VERDICTS[LIKE[verdict] ?? verdict] ?? VERDICTS.other;
  return { colour: isDark() ? dark : light, mark };
}

function luminance(/** @type {number[]} */ rgb) {
  const [r, g, b] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Return a colour made lighter until it stands out from a dark ground (contrast 4.5); black becomes a light grey. @param {string} colour #rrggbb */
function lightened(colour) {
  const rgb = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  if (rgb.some(Number.isNaN)) return "#bbbbbb";
  const hex = (/** @type {number[]} */ mixed) => `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  // Black has no hue to keep: it takes the place that it has on paper, that of the strongest contrast.
  const enough = Math.max(...rgb) < 16 ? 12 : 4.5;
  const mixes = Array.from({ length: 21 }, (_, i) => rgb.map((value) => Math.round(value + ((255 - value) * i) / 20)));
  return hex(mixes.find((mixed) => (luminance(mixed) + 0.05) / (luminance([0x1a, 0x1a, 0x18]) + 0.05) >= enough) ?? [255, 255, 255]);
}

/** Return an arm's colour on the page as it is now. @param {string} colour */
const armColour = (colour) => isDark() ? lightened(colour) : /^#[0-9a-f]{6}$/i.test(colour) ? colour : "#555555";

// --- document.js
// The document of the page: its numbers decoded, and who is who in it.

/** @type {Record<string, string>} */
const AXES = {
  rollout_step: "rollout steps", optimizer_step: "optimiser steps", completions: "completions", tokens: "tokens", seconds: "seconds",
};

/** @type {WeakMap<Curve, Map<string, Float64Array>>} */
const decoded = new WeakMap();

/** Return the numbers of a base64 text: 3 bytes each, the upper 24 bits of a float32. NaN stands for an absent one. @param {string} text */
function unpack(text) {
  const bytes = atob(text);
  const view = new DataView(new ArrayBuffer(4));
  return Float64Array.from({ length: Math.floor(bytes.length / 3) }, (_, i) => {
    for (let k = 0; k < 3; k++) view.setUint8(k, bytes.charCodeAt(3 * i + k));
    return view.getFloat32(0);
  });
}

/** Return packed numbers, `count` of them where one number holds for all. @param {Packed | undefined} packed @param {number} count */
function numbersOf(packed, count) {
  if (Array.isArray(packed)) return Float64Array.from(packed, (value) => value ?? NaN);
  return typeof packed === "string" ? unpack(packed) : new Float64Array(count).fill(packed ?? NaN);
}

/** Return a column of a curve, decoded when it is first asked for.
 * @param {Curve} curve @param {"x" | "y"} axis @param {string} name @returns {Float64Array} */
function columnOf(curve, axis, name) {
  const known = decoded.get(curve) ?? new Map();
  decoded.set(curve, known);
  const count = () => (name === "rollout_step" ? 0 : columnOf(curve, "x", "rollout_step").length);
  if (!known.has(axis + name)) known.set(axis + name, numbersOf(curve[axis][name], count()));
  return known.get(axis + name);
}

/** Return the columns of rows. @param {number[][]} rows @param {number} count */
function columns(rows, count) {
  return Array.from({ length: count }, (_, column) => Float64Array.from(rows, (row) => row[column]));
}

/** Return what shares a key, in the order of first appearance. (Map.groupBy is younger than browsers in use.)
 * @template One, Key @param {One[]} all @param {(one: One) => Key} keyOf */
function groupBy(all, keyOf) {
  const groups = /** @type {Map<Key, One[]>} */ (new Map());
  for (const one of all) groups.set(keyOf(one), groups.get(keyOf(one)) ?? []).get(keyOf(one))?.push(one);
  return groups;
}

/** Return rows of step, place and value as a trace. @param {number} seed @param {number[][]} rows @returns {Trace} */
function traceFrom(seed, rows) {
  const [steps, x, y] = columns(rows, 3);
  return { seed, steps, x, y };
}

/** Return a run's numbers of a metric over an axis; null where it has none. Rows without a number are left out.
 * @param {Run} run @param {string} metric @param {string} x @param {number} seed
 * @param {boolean} [peaks] whether the extremes that thinning left out are put in again @returns {Trace | null} */
function traceOf(run, metric, x, seed, peaks = false) {
  const curve = [run.train, run.eval].find((one) => one && metric in one.y);
  if (!curve || !(x in curve.x)) return null;
  const [steps, at] = ["rollout_step", x].map((name) => columnOf(curve, "x", name));
  const values = columnOf(curve, "y", metric);
  const rows = Array.from(steps, (step, i) => [step, at[i], values[i]]);
  if (peaks) {
    // On another axis a peak lies where the last step before it does that was kept.
    const before = (/** @type {number} */ step) => at[Math.max(0, steps.findLastIndex((one) => one <= step))];
    for (const [step, value] of curve.peaks?.[metric] ?? []) rows.push([step, x === "rollout_step" ? step : before(step), value]);
    rows.sort((a, b) => a[0] - b[0]);
  }
  const kept = rows.filter((row) => row.every(Number.isFinite));
  return kept.length ? traceFrom(seed, kept) : null;
}

/** Return the study of a name, else the first one that has runs. @param {Sweep} sweep @param {string} name */
function studyOf(sweep, name) {
  return sweep.studies.find((one) => one.name === name) ?? sweep.studies.find((one) => one.cells.some((cell) => cell[0] >= 0)) ?? sweep.studies[0];
}

/** Return the runs of an arm in a facet with their seeds, in the order of the seeds.
 * @param {Sweep} sweep @param {Study} study @param {number} arm @param {number} facet */
function runsOf(sweep, study, arm, facet) {
  return study.cells
    .filter((cell) => cell[0] >= 0 && cell[1] === arm && cell[2] === facet)
    .map((cell) => ({ run: sweep.runs[cell[0]], seed: cell[3] }))
    .sort((a, b) => a.seed - b.seed);
}

/** Return where a run stands: in this study if it is one of its cells, else in the first that has it.
 * @param {Sweep} sweep @param {string} signature @param {Study} [preferred] */
function placeOf(sweep, signature, preferred) {
  const index = sweep.runs.findIndex((run) => run.signature === signature);
  const study = [preferred, ...sweep.studies].find((one) => one?.cells.some((cell) => cell[0] === index));
  const cell = study?.cells.find((one) => one[0] === index);
  if (!study || !cell || index < 0) return null;
  return { run: sweep.runs[index], study, arm: study.arms[cell[1]], facet: study.facets[cell[2]], cell };
}

/** @param {Sweep} sweep @param {Study} study @returns {Curve[]} */
const curvesOf = (sweep, study) => study.cells.flatMap(([index]) => [sweep.runs[index]?.train ?? [], sweep.runs[index]?.eval ?? []].flat());

/** Return the metrics that runs of a study have, in the document's order. @param {Sweep} sweep @param {Study} study */
function metricsOf(sweep, study) {
  const present = new Set(curvesOf(sweep, study).flatMap(({ y }) => Object.keys(y)));
  return Object.keys(sweep.metrics).filter((name) => present.has(name));
}

/** Return the axes over which a metric can be shown. @param {Sweep} sweep @param {Study} study @param {string} metric */
function axesOf(sweep, study, metric) {
  const curves = curvesOf(sweep, study).filter(({ y }) => metric in y);
  return Object.keys(AXES).filter((name) => name === "rollout_step" || curves.some(({ x }) => name in x));
}

/** Return the metric whose curve shows what a claim is about; many claims are of one number of a whole run.
 * @param {Sweep} sweep @param {Claim} claim */
function curveOfClaim(sweep, claim) {
  return [claim.curve ?? "", claim.metric].find((name) => name in sweep.metrics) ?? studyOf(sweep, claim.study).score.metric;
}

// --- elements.js
// Elements made from plain values. Every text of the data goes through text nodes, so none of it can be markup.

/** @typedef {string | number | boolean | null | undefined | ((event: any) => void)} Attribute */
/** @typedef {Record<string, Attribute>} Attributes those that begin with `on` are listeners; false and null leave it out */
/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {string | [value: string, label: string, title?: string]} Option */
/** @typedef {{node: HTMLElement, set: (value: string, options?: Option[]) => void}} Control */

/** @template {Element} Made @param {Made} made @param {Attributes} attributes @param {Child[]} children */
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : String(value));
  }
  const kept = children.filter((child) => child !== null && child !== undefined && child !== false);
  made.append(...kept.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

/** @type {<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, look?: Attributes, ...children: Child[]) => HTMLElementTagNameMap[Tag]} */
const element = (tag, look = {}, ...children) => fill(document.createElement(tag), look, children);

/** Make an element of a picture.
 * @type {<Tag extends keyof SVGElementTagNameMap>(tag: Tag, look?: Attributes, ...children: Child[]) => SVGElementTagNameMap[Tag]} */
const shape = (tag, look = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), look, children);

/** @param {string} name @param {() => unknown} onclick @param {Attributes} [look] */
const button = (name, onclick, look = {}) => element("button", { type: "button", onclick, ...look }, name);

/** @param {string} text */
const soft = (text) => element("span", { class: "soft" }, text);

/** @param {Option} option */
const partsOfOption = (option) => (typeof option === "string" ? [option, option] : option);

/** A labelled list to choose from. @param {string} label @param {Option[]} options @param {(value: string) => void} pick @returns {Control} */
function choice(label, options, pick) {
  const list = element("select", { onchange: () => pick(list.value) });
  let written = "";
  /** @param {string} value @param {Option[]} given */
  const set = (value, given = options) => {
    const made = given.map(partsOfOption).map(([value, name]) => element("option", { value }, name));
    if (written !== (written = JSON.stringify(given))) list.replaceChildren(...made);
    list.value = value;
  };
  return { node: element("label", { class: "control" }, element("span", {}, label), list), set };
}

/** Make buttons, one of them pressed. @param {string} label @param {Option[]} options @param {(value: string) => void} pick @returns {Control} */
function switcher(label, options, pick) {
  const buttons = options.map(partsOfOption).map(([value, name, title]) => button(name, () => pick(value), { value, title }));
  const set = (/** @type {string} */ value) => buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.value === value)));
  return { node: element("div", { class: "control switcher", role: "group", "aria-label": label }, ...buttons), set };
}

/** A table, numbers to the right. @param {string} caption @param {(string | number)[]} head @param {Child[][]} rows */
function table(caption, head, rows) {
  const isNumber = (/** @type {Child} */ value) => typeof value === "string" && /^[+−×]?[\d.,e−]+( s)?$/.test(value);
  const body = rows.map((row) => element("tr", {}, ...row.map((value) => element("td", { class: isNumber(value) && "number" }, value))));
  const heads = element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)));
  return element("table", {}, element("caption", {}, caption), element("thead", {}, heads), element("tbody", {}, ...body));
}

/** Return an address that may be followed: http, or a path beside the page. Others (javascript:) are none. @param {string | undefined} address */
const safeAddress = (address) => address && (/^https?:\/\//i.test(address) || /^(\.\.?\/)+[\w./-]*$/.test(address)) ? address : null;

/** @param {EventTarget | null} target */
const isTyping = (target) => target instanceof HTMLElement && target.matches("input:not([type=checkbox]), select, textarea");

// --- numbers.js
// Numbers as text: three digits that count, a true minus, units that a reader knows.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** @param {number | null | undefined} value @param {number} [digits] */
function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const scientific = (size > 0 && size < 1e-3) || size >= 1e7;
  const tens = () => size.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e").replace("e-", "e−");
  const short = () => (size >= 1000 || Number.isInteger(size) ? GROUPED.format(size) : size.toPrecision(digits));
  return (value < 0 ? "−" : "") + (size === Infinity ? "inf" : scientific ? tens() : short());
}

/** @param {number | null | undefined} value @param {number} [digits] */
const signed = (value, digits = 3) => typeof value === "number" && value > 0 ? `+${number(value, digits)}` : number(value, digits);

/** Write p the way papers do. @param {number | null} value */
const probability = (value) => value === null ? "–" : value < 0.001 ? "< .001" : value.toFixed(3).replace(/^0/, "");

/** Write a round number, as it stands at a tick. @param {number} value */
function roundText(value) {
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-3 && size < 1e4) ? String(Number(value.toPrecision(6))).replace("-", "−") : number(value);
}

function duration(/** @type {number | null} */ seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${number(seconds, 2)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Return round places on an axis between two ends. @param {number} low @param {number} high @param {boolean} log @param {number} [count] */
function ticks(low, high, log, count = 5) {
  if (log) {
    const decades = Math.log10(high / low);
    const parts = decades >= 3 ? [1] : decades >= 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const powers = Array.from({ length: Math.ceil(decades) + 2 }, (_, i) => 10 ** (Math.floor(Math.log10(low)) + i));
    const places = powers.flatMap((power) => parts.map((part) => part * power)).filter((at) => at >= low && at <= high);
    const every = Math.ceil(places.length / 8);
    if (places.length > 1) return places.filter((_, i) => i % every === 0);
  }
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((one) => one * unit >= rough * 0.7) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// --- state.js
// What is seen, as text in the address: only what differs from the start stands there.

/** @type {State} */
const START = {
  tab: "answer", study: "", claim: "", unit: "margins",
  metric: "", off: [], x: "rollout_step", smooth: "tenth", lines: "mean", show: "absolute", to: "", facet: "", log: false, zoom: [], table: false,
  find: "", sort: "", run: "", metrics: [],
  sample: "", beside: "", step: -1, prompt: 0, colour: "ratio",
};
const TABS = ["answer", "curves", "runs", "tokens", "report"];
/** @type {Record<string, string[] | undefined>} */
const CHOICES = {
  tab: TABS, unit: ["margins", "own"], lines: ["mean", "seeds"], show: ["absolute", "difference"],
  smooth: ["none", "tenth", "fifth"], colour: ["ratio", "clip", "advantage", "entropy", "gap"],
};

/** Return the state as the part of an address behind `#`. Lists repeat their key, so that any name may stand in them. @param {State} state */
function toHash(state) {
  const words = new URLSearchParams();
  for (const [key, start] of Object.entries(START)) {
    const value = state[/** @type {keyof State} */ (key)];
    if (Array.isArray(value)) for (const one of value) words.append(key, String(one));
    else if (value !== start || key === "tab") words.set(key, String(value));
  }
  // Colons, slashes and commas may stand in a fragment as they are: links stay legible.
  return words.toString().replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
}

/** Return the state of an address; what it does not say, or says wrongly, is as at the start. @param {string} hash @returns {State} */
function fromHash(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const made = Object.entries(START).map(([key, start]) => {
    const [texts, allowed] = [words.getAll(key), CHOICES[key]];
    const numbers = texts.map((text) => (text ? Number(text) : NaN));
    if (!texts.length) return [key, start];
    if (key === "zoom") return [key, numbers.length === 2 && numbers.every(Number.isFinite) && numbers[0] < numbers[1] ? numbers : []];
    if (Array.isArray(start)) return [key, texts];
    if (typeof start === "number") return [key, Number.isSafeInteger(numbers[0]) ? numbers[0] : start];
    if (typeof start === "boolean") return [key, texts[0] === "true"];
    return [key, !allowed || allowed.includes(texts[0]) ? texts[0] : start];
  });
  return Object.fromEntries(made);
}

// --- statistics.js
// What the page computes from runs: means with Student's band, differences paired by seed, moving means.


/** Round a half to the even neighbour, as Python does. @param {number} value */
const roundEven = (value) => (Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

/** Return the moving mean of each seed over one step in `parts` before and behind, of those that any of the seeds has;
 * at the start, where a run changes most, over fewer. It is the rule of the figures (`smooth` in figures/panels.py).
 * @param {Trace[]} traces @param {number} parts 0: not smoothed @param {boolean} log whether the mean is of logarithms
 * @returns {Trace[]} */
function smooth(traces, parts, log) {
  const all = [...new Set(traces.flatMap(({ steps }) => Array.from(steps)))].sort((a, b) => a - b);
  const place = new Map(all.map((step, i) => [step, i]));
  const half = parts ? roundEven(all.length / parts) : 0;
  return traces.map((trace) => {
    const row = new Float64Array(all.length).fill(NaN);
    trace.steps.forEach((step, i) => (row[place.get(step) ?? 0] = log ? Math.log(trace.y[i]) : trace.y[i]));
    const y = trace.steps.map((step) => {
      const at = place.get(step) ?? 0;
      const reach = Math.min(half, at);
      const near = row.subarray(at - reach, at + reach + 1).filter(Number.isFinite);
      const mean = Number.isFinite(row[at]) ? near.reduce((sum, value) => sum + value, 0) / near.length : NaN;
      return log ? Math.exp(mean) : mean;
    });
    return { ...trace, y };
  });
}

/** Return the mean of numbers and half the width of its 95% interval; NaN for the half of a single number.
 * @param {number[]} values @param {number[]} t95 Student's t by degrees of freedom, from 1 */
function meanAndHalf(values, t95) {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  if (n < 2) return { mean, half: NaN };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  return { mean, half: (t95[n - 2] ?? 1.96) * Math.sqrt(variance / n) };
}

/** Return the interval of a mean of shares, which stays between 0 and 1: Wilson's at the effective sample size, with
 * Student's t (`share_band` in report/statistics/intervals.py). @param {number} mean @param {number} half */
function shareInterval(mean, half) {
  if (!(mean > 0 && mean < 1)) return [Math.max(0, mean - half), Math.min(1, mean + half)];
  const ratio = half ** 2 / (mean * (1 - mean));
  const centre = (mean + ratio / 2) / (1 + ratio);
  const wide = Math.sqrt(ratio * mean * (1 - mean) + ratio ** 2 / 4) / (1 + ratio);
  return [Math.max(0, centre - wide), Math.min(1, centre + wide)];
}

/** Return the mean over runs at each step that at least `fewest` of them have, with its 95% band.
 * @param {Trace[]} traces @param {{t95: number[], log?: boolean, share?: boolean, fewest?: number}} how
 * `log`: the geometric mean; `share`: the values lie between 0 and 1 @returns {Mean} */
function average(traces, { t95, log = false, share = false, fewest = 1 }) {
  const rows = traces.flatMap(({ steps, x, y }) => Array.from(steps, (step, i) => [step, x[i], log ? Math.log(y[i]) : y[i]]));
  const points = Array.from(groupBy(rows.filter((row) => Number.isFinite(row[2])), (row) => row[0]).values());
  const means = points.filter((runs) => runs.length >= fewest).map((runs) => {
    const { mean, half } = meanAndHalf(runs.map((row) => row[2]), t95);
    const place = runs.reduce((sum, row) => sum + row[1], 0) / runs.length;
    const bounds = share && !log ? shareInterval(mean, half) : [mean - half, mean + half];
    return [runs[0][0], place, ...[mean, ...bounds].map((value) => (log ? Math.exp(value) : value)), runs.length];
  });
  const [steps, x, y, low, high, n] = columns(means.sort((a, b) => a[0] - b[0]), 6);
  return { steps, x, y, low, high, n };
}

/** Return each run minus the run of the same seed, at the steps that both have; divided by it, where factors are asked.
 * @param {Trace[]} traces @param {Trace[]} baseline @param {boolean} factors @returns {Trace[]} */
function paired(traces, baseline, factors) {
  return traces.flatMap(({ seed, steps, x, y }) => {
    const other = baseline.find((trace) => trace.seed === seed);
    const theirs = new Map(Array.from(other?.steps ?? [], (step, i) => [step, other?.y[i] ?? NaN]));
    const rows = Array.from(steps, (step, i) => {
      const base = theirs.get(step) ?? NaN;
      return [step, x[i], !factors ? y[i] - base : y[i] > 0 && base > 0 ? y[i] / base : NaN];
    });
    const kept = rows.filter((row) => Number.isFinite(row[2]));
    return kept.length ? [traceFrom(seed, kept)] : [];
  });
}

/** Return the least and greatest of what lines show within a window, with a little room.
 * @param {{x: ArrayLike<number>, values: ArrayLike<number>}[]} lines @param {number[]} window empty for everything @param {boolean} log
 * @returns {[number, number]} */
function extent(lines, window, log) {
  const [from, to] = window.length ? window : [-Infinity, Infinity];
  const least = log ? Number.MIN_VALUE : -Infinity;
  const seen = lines.flatMap(({ x, values }) => Array.from(values).filter((y, i) => Number.isFinite(y) && y >= least && x[i] >= from && x[i] <= to));
  const low = seen.reduce((one, other) => Math.min(one, other), Infinity);
  const high = seen.reduce((one, other) => Math.max(one, other), -Infinity);
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const room = low === high ? Math.abs(low) / 10 || 0.5 : (high - low) * 0.05;
  return [low >= 0 && low < room ? 0 : low - room, high + room]; // what never falls below zero keeps zero as its floor
}

// --- metric_search.js
// The search box of metrics: every word that is typed must stand in a metric's name, meaning or unit.


/** Return the metrics that a text finds: the one of that very name, then those whose name has its first word.
 * @param {Record<string, Metric>} metrics @param {string[]} names @param {string} text */
function search(metrics, names, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = names.filter((name) => {
    const all = `${name} ${metrics[name].meaning} ${metrics[name].unit} ${metrics[name].kind}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
  const rank = (/** @type {string} */ name) => (name.toLowerCase() === words[0] ? -1 : Number(!name.toLowerCase().includes(words[0] ?? "")));
  return found.sort((a, b) => rank(a) - rank(b));
}

/** @param {{unit: string}} metric */
const unitOf = ({ unit }) => element("span", { class: "unit" }, unit === "1" ? "" : unit);

/** @param {string} label @param {Record<string, Metric>} metrics @param {() => string[]} names @param {(name: string) => void} pick */
function metricSearch(label, metrics, names, pick) {
  const id = "metrics";
  let [shown, at, chosen] = [/** @type {string[]} */ ([]), 0, ""];
  const list = element("ul", { id, role: "listbox", "aria-label": label, hidden: true });
  const look = { type: "search", role: "combobox", "aria-controls": id, "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false" };
  const box = element("input", { ...look, oninput: () => open(box.value), onfocus: () => open(""), onblur: close, onkeydown: key });

  function open(/** @type {string} */ text) {
    if (!text) box.select();
    shown = search(metrics, names(), text);
    list.replaceChildren(...(shown.length ? shown.map(optionOf) : [element("li", {}, soft("no metric has all these words"))]));
    list.hidden = false;
    box.setAttribute("aria-expanded", "true");
    mark(text ? 0 : Math.max(0, shown.indexOf(chosen)));
  }
  function close() {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
    box.value = chosen;
  }
  /** @param {string} name @param {number} i */
  function optionOf(name, i) {
    const meaning = element("span", { class: "meaning" }, metrics[name].meaning);
    // The box keeps the focus until the click is through.
    const look = { id: `${id}-${i}`, role: "option", onmousedown: (/** @type {Event} */ event) => event.preventDefault(), onclick: () => take(name) };
    return element("li", look, element("b", {}, name), unitOf(metrics[name]), meaning);
  }
  function mark(/** @type {number} */ i) {
    at = i;
    Array.from(list.children).forEach((item, k) => item.setAttribute("aria-selected", String(k === i)));
    box.setAttribute("aria-activedescendant", `${id}-${i}`);
    list.children[i]?.scrollIntoView({ block: "nearest" });
  }
  function take(/** @type {string} */ name) {
    pick(name);
    box.blur();
  }
  function key(/** @type {KeyboardEvent} */ event) {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") box.blur();
    else if (event.key === "Enter" && shown[at]) take(shown[at]);
    else if (way && shown.length) mark((at + way + shown.length) % shown.length);
    if (way) event.preventDefault();
  }
  const set = (/** @type {string} */ name) => {
    chosen = name;
    if (document.activeElement !== box) box.value = name;
  };
  const node = element("div", { class: "control search" }, element("label", {}, element("span", {}, label), box), list);
  return { node, focus: () => box.focus(), set };
}

// --- save.js
// What leaves the page: CSV, SVG and PNG of what is seen, and the link to it.


/** Return rows as CSV (RFC 4180); numbers with every digit they have. @param {(string | number)[][]} rows */
function toCsv(rows) {
  /** @param {string | number} value */
  const cell = (value) => {
    if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(7))) : "";
    return /[",\r\n]/.test(value) || value !== value.trim() ? `"${value.replaceAll('"', '""')}"` : value;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

/** @param {SVGSVGElement} picture */
const toSvg = (picture) => `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture)}\n`;

/** Return a picture as PNG, twice as sharp as its size says. @param {SVGSVGElement} picture @returns {Promise<Blob>} */
async function toPng(picture) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(toSvg(picture))}`;
  await image.decode();
  const [width, height] = [picture.width.baseVal.value, picture.height.baseVal.value];
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const canvas = element("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("this browser drew no PNG"))), "image/png"));
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Save what is seen as a file. @param {Seen} seen @param {"csv" | "svg" | "png"} kind */
async function save(seen, kind) {
  const name = `${seen.name.replace(/[^\w.-]+/g, "_").slice(0, 120)}.${kind}`;
  if (kind === "csv") download(new Blob([toCsv(seen.rows())], { type: "text/csv;charset=utf-8" }), name);
  else if (seen.picture) {
    const picture = seen.picture();
    download(kind === "svg" ? new Blob([toSvg(picture)], { type: "image/svg+xml" }) : await toPng(picture), name);
  }
}

// --- tip.js
// What a panel says at the cursor: the value of every arm at that step, and how many runs are behind it.


/** @param {Panel} panel */
const longestOf = (panel) => panel.arms.map((arm) => arm.mean.x).reduce((one, other) => (other.length > one.length ? other : one));

/** Return how far from a point the cursor still means it. @param {Panel} panel */
function spacingOf(panel) {
  const x = longestOf(panel);
  return x.length > 1 ? (0.75 * (x[x.length - 1] - x[0])) / (x.length - 1) : Infinity;
}

/** Return the point that is nearest to a place; null if none is near enough.
 * @param {ArrayLike<number>} x ascending @param {number} at @param {number} reach */
function nearest(x, at, reach) {
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < at) low = middle + 1;
    else high = middle;
  }
  const found = low > 0 && at - x[low - 1] < x[low] - at ? low - 1 : low;
  return x.length && Math.abs(x[found] - at) <= reach ? found : null;
}

/** Write what the arms have at the cursor, on the side where the cursor is not.
 * @param {Plot} u @param {HTMLElement} tip @param {Picture} picture @param {Panel} panel @param {number} reach */
function showTip(u, tip, picture, panel, reach) {
  const left = u.cursor.left ?? -1;
  const longest = longestOf(panel);
  const pointer = u.posToVal(left, "x");
  const first = nearest(longest, pointer, reach);
  tip.hidden = left < 0 || left > u.over.clientWidth || first === null;
  if (first === null || tip.hidden) return;
  const at = longest[first];
  const rows = panel.arms.flatMap(({ name, colour, mean }) => {
    const i = nearest(mean.x, at, reach);
    return i === null ? [] : [{ name, colour, y: mean.y[i], ends: [mean.low[i], mean.high[i]], n: mean.n[i] }];
  });
  const body = rows
    .sort((a, b) => b.y - a.y)
    .map(({ name, colour, y, ends, n }) => {
      const dot = element("i", { style: `background: ${armColour(colour)}` });
      const interval = Number.isFinite(ends[0]) ? `[${ends.map((end) => number(end, 2)).join(", ")}]` : "";
      const cells = [number(y, 4), interval, `n ${n}`].map((text) => element("td", {}, text));
      return element("tr", {}, element("th", {}, dot, name), ...cells);
    });
  const seed = picture.seeds && u.cursor.event ? nearestSeed(u, panel, at, reach) : "";
  const head = element("div", { class: "soft" }, `${picture.x} ${number(at, 4)}`);
  tip.replaceChildren(head, element("table", {}, ...body), element("div", {}, seed));
  tip.classList.toggle("right", left < u.over.clientWidth / 2);
}

/** Name the single line that is nearest to the pointer. @param {Plot} u @param {Panel} panel @param {number} at @param {number} reach */
function nearestSeed(u, panel, at, reach) {
  let [best, text] = [24, ""];
  for (const { name, traces } of panel.arms) {
    for (const { seed, x, y } of traces) {
      const i = nearest(x, at, reach);
      const distance = i === null ? Infinity : Math.abs(u.valToPos(y[i], "y") - (u.cursor.top ?? 0));
      if (i !== null && distance < best) [best, text] = [distance, `${name}, seed ${seed}: ${number(y[i], 4)}`];
    }
  }
  return text;
}

// --- panels.js
// What Curves shows, as numbers: a panel for each facet, in it the arms with their means and single seeds.


const GAP = 14; // between panels, in pixels
/** @type {Record<string, number>} */
const SMOOTH = { none: 0, tenth: 20, fifth: 10 };
/** @type {Record<string, string>} */
const NAMES = { none: "none", tenth: "a tenth", fifth: "a fifth" };

/** Return what a state shows of a study. The table, the chart and every saved file are made from it.
 * @param {Sweep} sweep @param {Study} study @param {State} state @returns {Picture} */
function pictureOf(sweep, study, state) {
  const metric = state.metric in sweep.metrics ? state.metric : study.score.metric;
  const to = baselineOf(study, state);
  const difference = state.show === "difference" && study.paired;
  const factors = difference && state.log;
  const seeds = state.lines === "seeds";
  const x = axesOf(sweep, study, metric).includes(state.x) ? state.x : "rollout_step";
  const { unit = "", of_step: ofStep, share, kind } = sweep.metrics[metric] ?? {};
  const parts = kind === "evaluation" ? 0 : SMOOTH[state.smooth];
  /** @type {(arm: number, facet: number, peaks?: boolean) => Trace[]} */
  const traces = (arm, facet, peaks) => {
    const own = runsOf(sweep, study, arm, facet).flatMap(({ run, seed }) => traceOf(run, metric, x, seed, peaks) ?? []);
    return smooth(own, parts, state.log);
  };
  const many = study.arms.filter(({ name }) => !state.off.includes(name)).length > 6;
  const panels = study.facets.flatMap((title, facet) => {
    if (state.facet && state.facet !== title) return [];
    const others = difference ? traces(to, facet) : [];
    const arms = study.arms.flatMap((arm, index) => {
      if (state.off.includes(arm.name) || (difference && index === to)) return [];
      const mine = difference ? paired(traces(index, facet), others, factors) : traces(index, facet);
      const lines = !seeds ? [] : difference || parts ? mine : traces(index, facet, true);
      // A mean of fewer than half of the seeds would depend on which are left. Evaluations are carried forward.
      const fewest = kind === "evaluation" ? 1 : mine.length / 2;
      const how = { t95: sweep.t95, log: state.log, share: share && !difference, fewest };
      return mine.length ? [{ ...arm, mean: average(mine, how), traces: lines, plain: many && index !== to }] : [];
    });
    return [{ title, row: rowOf(study, title), arms }];
  });
  const word = factors ? "factor" : "difference";
  const names = {
    title: difference ? `${metric}: ${word} to ${study.arms[to].name}, paired by seed` : metric,
    y: (difference ? `${word} of ${metric}` : metric) + (unit && unit !== "1" && !factors ? `, ${unit}` : ""),
    note: noteOf(sweep, state, { of_step: ofStep, kind }) + (many ? " Of so many arms only the baseline's band is shown." : ""),
  };
  return { ...names, x: AXES[x], panels, log: state.log, seeds, zoom: state.zoom, reference: difference ? Number(factors) : null, marks: [] };
}

/** @param {Study} study @param {State} state */
function baselineOf(study, state) {
  const names = study.arms.map((arm) => arm.name);
  return Math.max(0, names.indexOf(names.includes(state.to) ? state.to : study.baseline));
}

/** Panels of one task share their y axis and stand in one row, where facets are a task and something else.
 * @param {Study} study @param {string} facet */
function rowOf(study, facet) {
  const [task, ...rest] = facet.split("/");
  const many = study.facets.some((other) => other !== facet && other.startsWith(`${task}/`));
  return rest.length && many ? task : facet;
}

/** @param {Sweep} sweep @param {State} state @param {Partial<Metric>} metric */
function noteOf(sweep, state, { of_step: ofStep, kind }) {
  const mean = state.log ? "Geometric mean over seeds; band: 95% t-interval of the logarithms." : "Mean over seeds; band: 95% interval of the mean.";
  const joined = { mean: "mean", max: "largest", min: "smallest" }[ofStep ?? ""];
  const smoothed = kind !== "evaluation" && state.smooth !== "none";
  const parts = [
    state.lines === "seeds" ? "A line per seed." : mean,
    smoothed && `Of each seed first the moving mean over about ${NAMES[state.smooth]} of the steps (fewer at the start).`,
    joined && `Updates of one rollout step: their ${joined}.`,
    sweep.thinning.every > 1 && sweep.thinning.says,
  ];
  return parts.filter(Boolean).join(" ");
}

/** Return every line that is drawn in a panel, with the arm that it belongs to. @param {Picture} picture @param {Panel} panel @returns {Line[]} */
function linesOf({ seeds }, panel) {
  return panel.arms.flatMap((arm) => {
    const mean = { arm, seed: null, steps: arm.mean.steps, x: arm.mean.x, y: arm.mean.y, band: arm.mean };
    const lines = /** @type {Line[]} */ (arm.traces.map((trace) => ({ arm, band: null, ...trace })));
    return seeds ? lines : [mean];
  });
}

/** Return the two ends of the x axis of a row of panels, or of all: tasks differ in how long they are trained.
 * @param {Picture} picture @param {string} [row] @returns {[number, number]} */
function xRange(picture, row) {
  if (picture.zoom.length) return [picture.zoom[0], picture.zoom[1]];
  const xs = picture.panels.filter((panel) => !row || panel.row === row).flatMap((panel) => linesOf(picture, panel).map(({ x }) => x)).filter((x) => x.length);
  const [low, high] = [Math.min(...xs.map((x) => x[0])), Math.max(...xs.map((x) => x[x.length - 1]))];
  return low < high ? [low, high] : low === high ? [low - 0.5, high + 0.5] : [0, 1];
}

/** Return the two ends of the y axis of a row of panels. @param {Picture} picture @param {string} row */
function yRange(picture, row) {
  const lines = picture.panels.filter((panel) => panel.row === row).flatMap((panel) => linesOf(picture, panel));
  const shown = lines.flatMap(({ arm, x, y, band }) => {
    const edges = band && !arm.plain ? [band.low, band.high].map((edge) => wellFounded(edge, band)) : [];
    return [y, ...edges].map((values) => ({ x, values }));
  });
  const start = Float64Array.of(xRange(picture, row)[0]);
  if (picture.reference !== null) shown.push({ x: start, values: Float64Array.of(picture.reference) });
  return extent(shown, picture.zoom, picture.log);
}

/** Of two runs alone the interval is so wide that it would leave nothing else to see. @param {Float64Array} edge @param {Mean} band */
const wellFounded = (edge, band) => edge.map((value, i) => (band.n[i] > 2 ? value : NaN));

/** Panels of a row stand beside each other where there is room. @param {Picture} picture @param {number} width */
function columnsOf({ panels }, width) {
  const fit = Math.floor((width + GAP) / (250 + GAP));
  const longest = Math.max(1, ...panels.map((panel) => panels.filter((other) => other.row === panel.row).length));
  return Math.max(1, Math.min(panels.length, fit, longest > 1 ? longest : panels.length === 4 ? 2 : 3));
}

/** Return what is seen as rows of a table, its head first. @param {Picture} picture @returns {(string | number)[][]} */
function rowsOf(picture) {
  const [from, to] = xRange(picture);
  const rows = picture.panels.flatMap((panel) =>
    linesOf(picture, panel).flatMap(({ arm, seed, steps, x, y, band }) =>
      Array.from(steps, (step, i) => {
        const more = band ? [band.low[i], band.high[i], band.n[i]] : [seed ?? NaN];
        return [panel.title, arm.name, step, x[i], y[i], ...more];
      }),
    ),
  );
  const head = ["panel", "arm", "rollout_step", picture.x, picture.title, ...(picture.seeds ? ["seed"] : ["low_95", "high_95", "runs"])];
  return [head, ...rows.filter((row) => Number(row[3]) >= from && Number(row[3]) <= to)];
}

// --- chart.js
// Panels that answer to the pointer: one cursor and one zoom in all of them.


/** @type {Picture} */
const NOTHING = { title: "", panels: [], x: "", y: "", log: false, seeds: false, zoom: [], reference: null, marks: [], note: "" };

/** Make a place for panels.
 * @param {HTMLElement} root @param {(zoom: number[]) => void} onZoom @param {(title: string) => void} onTitle @returns {Charts} */
function chartsIn(root, onZoom, onTitle) {
  let plots = /** @type {Plot[]} */ ([]);
  let [at, width] = [-1, 0];

  /** Put the cursor on another step. @param {number} by */
  function step(by) {
    const leader = plots.toSorted((a, b) => b.data[0].length - a.data[0].length)[0];
    if (!leader) return;
    const [from, to] = [leader.scales.x.min ?? 0, leader.scales.x.max ?? 0];
    const inside = Array.from(leader.data[0].keys()).filter((i) => leader.data[0][i] >= from && leader.data[0][i] <= to);
    const here = inside.indexOf(leader.cursor.idx ?? at); // from where the pointer is
    at = inside[here < 0 ? (by > 0 ? 0 : inside.length - 1) : Math.max(0, Math.min(inside.length - 1, here + by))];
    for (const plot of plots) plot.setCursor({ left: plot.valToPos(leader.data[0][at], "x"), top: 9 });
  }

  /** Zoom around the middle of what is seen. @param {number} times */
  function zoomBy(times) {
    const [low, high] = xRange({ ...charts.picture, zoom: [] });
    const [from, to] = xRange(charts.picture);
    const [middle, half] = [(from + to) / 2, ((to - from) / 2) * times];
    const zoom = [Math.max(low, middle - half), Math.min(high, middle + half)];
    onZoom(zoom[0] <= low && zoom[1] >= high ? [] : zoom.map((end) => Number(end.toPrecision(6))));
  }

  /** @type {Charts} */
  const charts = {
    picture: NOTHING,
    draw(picture) {
      charts.picture = picture;
      plots.forEach((plot) => plot.destroy());
      [at, width] = [-1, root.clientWidth];
      const columns = columnsOf(picture, width);
      const wide = Math.floor((width - GAP * (columns - 1)) / columns);
      // All rows on one screen where they fit, and never flatter than a curve can be read.
      const room = (innerHeight - 300) / Math.ceil(picture.panels.length / columns) - 32;
      const tall = Math.round(Math.min(Math.max(180, wide * 0.7), 420, Math.max(180, room)));
      const holders = picture.panels.map(({ title, arms }) => {
        const empty = !arms.length && element("p", { class: "empty" }, "nothing to show here");
        return element("section", { class: "panel" }, element("h3", {}, button(title, () => onTitle(title))), empty);
      });
      root.style.setProperty("--columns", String(columns));
      root.replaceChildren(...holders);
      plots = picture.panels.flatMap((panel, i) => {
        if (!panel.arms.length) return [];
        const { options, data } = plotOf(picture, panel, { width: wide, height: tall }, onZoom);
        const plot = new uPlot(options, data, holders[i]);
        plot.root.setAttribute("aria-hidden", "true"); // its table is there for those who do not see it
        return [plot];
      });
    },
    key(event) {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const times = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (way) step(way * (event.shiftKey ? 10 : 1));
      else if (times) zoomBy(times);
      else if (event.key === "0") onZoom([]);
      else return false;
      return true;
    },
    close() {
      plots.forEach((plot) => plot.destroy());
      observer.disconnect();
    },
  };
  const observer = new ResizeObserver(() => {
    if (root.clientWidth && Math.abs(root.clientWidth - width) > 1) charts.draw(charts.picture);
  });
  observer.observe(root);
  return charts;
}

/** Return what the chart library needs to draw a panel: its lines over the union of their places.
 * @param {Picture} picture @param {Panel} panel @param {{width: number, height: number}} size
 * @param {(zoom: number[]) => void} onZoom */
function plotOf(picture, panel, size, onZoom) {
  const lines = linesOf(picture, panel);
  const xs = Float64Array.from(new Set(lines.flatMap(({ x }) => Array.from(x)))).sort();
  const place = new Map(Array.from(xs, (x, i) => [x, i]));
  const [x0, x1] = xRange(picture, panel.row);
  const [y0, y1] = yRange(picture, panel.row);
  const series = /** @type {PlotOptions["series"]} */ ([{}]);
  const bands = /** @type {NonNullable<PlotOptions["bands"]>} */ ([]);
  const columns = /** @type {(number | null)[][]} */ ([]);
  /** @param {ArrayLike<number>} x @param {ArrayLike<number>} values @param {PlotOptions["series"][number]} look */
  const add = (x, values, look) => {
    const column = /** @type {(number | null)[]} */ (new Array(xs.length).fill(null));
    for (let i = 0; i < x.length; i++) {
      const shown = Number.isFinite(values[i]) && (!picture.log || values[i] > 0);
      if (shown) column[/** @type {number} */ (place.get(x[i]))] = values[i];
    }
    columns.push(column);
    series.push({ spanGaps: true, points: { show: false }, ...look });
  };
  for (const { arm, x, y, band } of lines) {
    const stroke = armColour(arm.colour);
    if (band && !arm.plain) {
      for (const edge of [band.high, band.low]) add(band.x, edge, { stroke: "transparent", width: 0 });
      bands.push({ series: [series.length - 2, series.length - 1], fill: stroke + (panel.arms.length > 4 ? "18" : "24") });
    }
    const look = band ? { width: 1.8, dash: arm.dash } : { width: 1.1, alpha: 0.7 };
    add(x, y, { stroke, ...look, points: { show: x.length < 3, size: 5 } });
  }
  const values = (/** @type {Plot} */ _, /** @type {number[]} */ splits) => splits.map(roundText);
  const grid = { stroke: ink("grid"), width: 1 };
  const axis = { stroke: ink("soft"), font: "11px system-ui, sans-serif", grid, ticks: { show: false }, gap: 5, values };
  const [across, up] = [ticks(x0, x1, false, size.width / 80), ticks(y0, y1, picture.log, size.height / 40)];
  const spacing = spacingOf(panel);
  const tip = element("div", { class: "tip", hidden: true });
  const all = () => () => (onZoom([]), null);
  /** @type {PlotOptions} */
  const options = {
    ...size,
    padding: [6, 8, 0, 0],
    legend: { show: false },
    series,
    bands,
    scales: { x: { time: false, range: () => [x0, x1] }, y: { distr: picture.log ? 3 : 1, range: () => [y0, y1] } },
    axes: [{ ...axis, size: 24, splits: () => across }, { ...axis, size: 54, splits: () => up, filter: () => up }],
    cursor: {
      y: false,
      dataIdx: (u, _, i, x) => (Math.abs(u.data[0][i] - x) <= spacing ? i : null),
      points: { size: (_, i) => (series[i].width ? 7 : 0), width: 0, fill: (_, i) => String(series[i].stroke) },
      drag: { x: true, y: false, setScale: false },
      // Moving is shared; a zoom goes through the state, which draws every panel anew.
      sync: { key: "look", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      bind: { dblclick: all },
    },
    hooks: {
      ready: [(u) => u.over.append(tip)],
      setCursor: [(u) => showTip(u, tip, picture, panel, spacing)],
      setSelect: [
        ({ select: { left, width }, posToVal }) => {
          const ends = [left, left + width].map((at) => Number(posToVal(at, "x").toPrecision(6)));
          // Not at once: the library still has to let go of the mouse, and a zoom draws its plot anew.
          if (width > 4) queueMicrotask(() => onZoom(ends));
        },
      ],
      drawAxes: [(u) => drawLines(u, picture)],
    },
  };
  return { options, data: /** @type {any} */ ([xs, ...columns]) };
}

/** Draw the line of no difference, and the steps at which something happened. @param {Plot} u @param {Picture} picture */
function drawLines(u, { reference, marks }) {
  u.ctx.fillStyle = ink("soft");
  const { left, top, width, height } = u.bbox;
  if (reference !== null) u.ctx.fillRect(left, Math.round(u.valToPos(reference, "y", true)), width, devicePixelRatio);
  for (const step of marks) u.ctx.fillRect(Math.round(u.valToPos(step, "x", true)), top, devicePixelRatio, height);
}

// --- drawing.js
// Pictures to be saved: the panels of Curves as SVG, drawn from the same numbers as the chart.


const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const WIDE = 420;
const TALL = 230;
const LEFT = 58;
const TOP = 26;

/** Return an empty picture on the page's ground. @param {number} width @param {number} height */
function canvas(width, height) {
  const look = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": 11 };
  return shape("svg", { ...look, fill: ink("ink") }, shape("rect", { width, height, fill: ink("paper") }));
}

/** @param {number} x @param {number} y @param {string} text @param {Record<string, string | number>} [look] */
function words(x, y, text, look = {}) {
  // XML has no place for these: with them the file would be none.
  // eslint-disable-next-line no-control-regex
  return shape("text", { x, y, ...look }, text.toWellFormed().replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd"));
}

/** Break a text into lines of about so many characters. @param {string} text @param {number} width */
const wrap = (text, width) => text.match(new RegExp(`\\S.{0,${width - 2}}(?!\\S)|\\S{${width}}`, "g")) ?? [""];

/** Return panels as one SVG picture with title, legend and axes. @param {Picture} picture */
function drawPicture(picture) {
  const arms = [...new Map(picture.panels.flatMap((panel) => panel.arms.map((arm) => [arm.name, arm]))).values()];
  const columns = columnsOf(picture, 1300);
  const width = columns * WIDE;
  const perRow = Math.floor((width - 20) / 190);
  const head = 34 + 18 * Math.ceil(arms.length / perRow);
  const height = head + Math.ceil(picture.panels.length / columns) * (TALL + 24) + 42;
  const svg = canvas(width, height);
  svg.append(words(12, 20, picture.title, { "font-size": 13, "font-weight": 600 }));
  arms.forEach((arm, i) => {
    const [x, y] = [12 + (i % perRow) * 190, 38 + 18 * Math.floor(i / perRow)];
    svg.append(shape("path", { d: `M${x} ${y}h24`, ...strokeOf(arm) }), words(x + 30, y + 4, arm.name.slice(0, 26)));
  });
  picture.panels.forEach((panel, i) => {
    const transform = `translate(${(i % columns) * WIDE} ${head + Math.floor(i / columns) * (TALL + 24)})`;
    svg.append(shape("g", { transform }, ...drawPanel(picture, panel, `panel-${i}`)));
  });
  const axes = `x: ${picture.x}; y: ${picture.y}${picture.log ? ", logarithmic" : ""}`;
  svg.append(words(12, height - 24, axes, { fill: ink("soft") }), words(12, height - 9, picture.note, { fill: ink("soft"), "font-size": 10 }));
  return svg;
}

/** Return what can be saved of panels. @param {Picture} picture @param {string} name @returns {Seen} */
const seenIn = (picture, name) => ({ name, picture: () => drawPicture(picture), rows: () => rowsOf(picture) });

function strokeOf(/** @type {ArmLines} */ arm) {
  const dash = arm.dash.length ? arm.dash.join(" ") : null;
  return { fill: "none", stroke: armColour(arm.colour), "stroke-width": 1.6, "stroke-dasharray": dash, "stroke-linejoin": "round" };
}

/** @param {Picture} picture @param {Panel} panel @param {string} id */
function drawPanel(picture, panel, id) {
  const [x0, x1] = xRange(picture, panel.row);
  const [y0, y1] = yRange(picture, panel.row);
  const [right, bottom] = [WIDE - 12, TALL - 8];
  const scale = picture.log ? Math.log : Number;
  const toX = (/** @type {number} */ x) => LEFT + ((x - x0) / (x1 - x0)) * (right - LEFT);
  const toY = (/** @type {number} */ y) => bottom - ((scale(y) - scale(y0)) / (scale(y1) - scale(y0))) * (bottom - TOP);
  /** @param {Float64Array} x @param {Float64Array} y */
  const points = (x, y) => Array.from(y, (value, i) => (Number.isFinite(value) ? [`${toX(x[i]).toFixed(2)} ${toY(value).toFixed(2)}`] : [])).flat();
  const axes = shape("g", { fill: ink("soft"), "font-size": 10, stroke: "none" });
  /** @param {string} d @param {string} [colour] */
  const line = (d, colour = ink("grid")) => axes.append(shape("path", { d, stroke: colour }));
  for (const at of ticks(y0, y1, picture.log)) {
    line(`M${LEFT} ${toY(at)}H${right}`);
    axes.append(words(LEFT - 6, toY(at) + 3.5, roundText(at), { "text-anchor": "end" }));
  }
  for (const at of ticks(x0, x1, false)) {
    line(`M${toX(at)} ${TOP}V${bottom}`);
    axes.append(words(toX(at), bottom + 14, roundText(at), { "text-anchor": "middle" }));
  }
  if (picture.reference !== null) line(`M${LEFT} ${toY(picture.reference)}H${right}`, ink("soft"));
  for (const step of picture.marks) line(`M${toX(step)} ${TOP}V${bottom}`, ink("soft"));
  const lines = shape("g", { "clip-path": `url(#${id})` });
  for (const { arm, x, y, band } of linesOf(picture, panel)) {
    const edge = band && !arm.plain ? [...points(x, band.high), ...points(x, band.low).reverse()] : [];
    if (edge.length) lines.append(shape("path", { d: `M${edge.join("L")}Z`, fill: armColour(arm.colour), "fill-opacity": 0.14 }));
    lines.append(shape("path", { d: `M${points(x, y).join("L")}`, ...strokeOf(arm), "stroke-opacity": band ? 1 : 0.6 }));
  }
  const box = shape("clipPath", { id }, shape("rect", { x: LEFT, y: TOP, width: right - LEFT, height: bottom - TOP }));
  const empty = !panel.arms.length && words(LEFT + 20, TOP + 60, "nothing to show here", { fill: ink("soft") });
  return [box, words(LEFT, TOP - 8, panel.title, { "font-weight": 600 }), axes, lines, ...(empty ? [empty] : [])];
}

// --- curves.js
// The tab of curves: one metric of one study, a panel for each facet, an arm always in its colour.


const PAIRED = "each seed minus the baseline's run of the same seed; a factor where y is logarithmic";
const PRESS = "click: on or off; double click, or Shift and Enter: this one alone";

/** @param {HTMLElement} root @param {App} app @returns {View} */
function curvesView(root, app) {
  const { sweep, go } = app;
  const study = () => studyOf(sweep, app.state.study);
  const search = metricSearch("metric", sweep.metrics, () => metricsOf(sweep, study()), (metric) => go({ metric, zoom: [] }));
  const another = (/** @type {string} */ name) => go({ study: name, off: [], to: "", facet: "", zoom: [] });
  const studies = choice("study", sweep.studies.map(({ name }) => name), another);
  const axis = choice("x axis", [], (x) => go({ x, zoom: [] }));
  const smoothing = choice("smooth", Object.entries(NAMES), (value) => go({ smooth: value }));
  const lines = switcher("lines", [["mean", "mean", "over seeds, with its 95% interval"], "seeds"], (value) => go({ lines: value }));
  const show = switcher("values", ["absolute", ["difference", "difference", PAIRED]], (value) => go({ show: value }));
  const to = choice("to", [], (name) => go({ to: name }));
  const log = button("log y", () => go({ log: !app.state.log }), { title: "logarithmic y axis" });
  const whole = button("show everything", () => go({ zoom: [], facet: "" }));
  const heading = element("p", { class: "metric" });
  const legend = element("div", { class: "legend", role: "group", "aria-label": "arms" });
  const [panels, behind] = ["panels", "behind"].map((name) => element("div", { class: name }));
  const note = element("p", { class: "note" });
  const many = sweep.studies.length > 1 && studies.node;
  root.append(
    element("div", { class: "controls" }, search.node, many, axis.node, smoothing.node, lines.node, show.node, to.node, log, whole),
    element("figure", { class: "curves" }, heading, legend, panels, note, behind),
  );
  const charts = chartsIn(panels, (zoom) => go({ zoom }), (facet) => go({ facet: app.state.facet ? "" : facet }));

  /** @param {string} name @param {MouseEvent} event */
  const press = (name, event) => {
    const flip = (/** @type {string[]} */ off) => (off.includes(name) ? off.filter((one) => one !== name) : [...off, name]);
    const { off } = app.state;
    if (event.detail !== 2 && !event.shiftKey) return go({ off: flip(off) });
    const before = event.shiftKey ? off : flip(off); // the first click of a double click has switched it already
    const others = study().arms.map((arm) => arm.name).filter((one) => one !== name);
    go({ off: !before.includes(name) && others.every((one) => before.includes(one)) ? [] : others });
  };

  return {
    update(state) {
      const current = study();
      const picture = pictureOf(sweep, current, state);
      const metric = state.metric in sweep.metrics ? state.metric : current.score.metric;
      const axes = axesOf(sweep, current, metric);
      const difference = current.paired && state.show === "difference";
      search.set(metric);
      studies.set(current.name);
      axis.set(axes.includes(state.x) ? state.x : "rollout_step", axes.map((name) => [name, AXES[name]]));
      smoothing.set(state.smooth);
      smoothing.node.hidden = sweep.metrics[metric]?.kind === "evaluation";
      lines.set(state.lines);
      show.set(difference ? "difference" : "absolute");
      show.node.hidden = !current.paired;
      to.node.hidden = !difference;
      to.set(current.arms[baselineOf(current, state)].name, current.arms.map((arm) => arm.name));
      log.setAttribute("aria-pressed", String(state.log));
      whole.hidden = !state.zoom.length && !state.facet;
      const { meaning = "", unit = "" } = sweep.metrics[metric] ?? {};
      heading.replaceChildren(element("b", {}, picture.title), unitOf({ unit: picture.reference === 1 ? "" : unit }), soft(meaning));
      showLegend(legend, current, state, press);
      charts.draw(picture);
      const none = picture.panels.every(({ arms }) => !arms.length) && !state.off.length;
      note.textContent = none ? `No run of this study has numbers of ${metric}.` : `x: ${picture.x}. ${picture.note}`;
      // The table costs more than the chart, and nobody waits for it.
      behind.replaceChildren();
      setTimeout(() => charts.picture === picture && behind.replaceChildren(...tablesOf(picture)), 50);
    },
    seen: () => seenIn(charts.picture, `${study().name} ${charts.picture.title}`),
    find: search.focus,
    ...charts,
  };
}

/** The buttons stay where they are while the study does, so that a double click meets the same one twice.
 * @param {HTMLElement} legend @param {Study} study @param {State} state @param {(name: string, event: MouseEvent) => void} press */
function showLegend(legend, study, state, press) {
  const shown = `${study.name} ${isDark()}`;
  if (legend.dataset.shown !== shown) {
    legend.dataset.shown = shown;
    const buttons = study.arms.map((arm) => {
      const onclick = (/** @type {MouseEvent} */ event) => press(arm.name, event);
      const line = { d: "M0 5h26", fill: "none", stroke: armColour(arm.colour), "stroke-width": 2.5, "stroke-dasharray": arm.dash.join(" ") || null };
      const swatch = shape("svg", { width: 26, height: 10, "aria-hidden": "true" }, shape("path", line));
      return element("button", { type: "button", title: PRESS, onclick }, swatch, arm.name, arm.name === study.baseline && soft("baseline"));
    });
    legend.replaceChildren(...buttons);
  }
  Array.from(legend.children).forEach((one, i) => one.setAttribute("aria-pressed", String(!state.off.includes(study.arms[i].name))));
}

/** The chart in words: a table a panel, a row a step, of at most fifty steps; CSV has them all. @param {Picture} picture */
function tablesOf(picture) {
  return picture.panels.map(({ title, arms }) => {
    const steps = [...new Set(arms.flatMap((arm) => Array.from(arm.mean.steps)))].sort((a, b) => a - b);
    const every = Math.ceil(steps.length / 50);
    const kept = steps.filter((_, i) => i % every === 0 || i === steps.length - 1);
    const rows = kept.map((step) => {
      const cells = arms.flatMap(({ mean: { steps, y, low, high, n } }) => {
        const i = steps.indexOf(step);
        return i < 0 ? ["", "", ""] : [number(y[i], 4), `[${number(low[i])}, ${number(high[i])}]`, String(n[i])];
      });
      return [number(step), ...cells];
    });
    const caption = `${title}: ${picture.title}, mean over seeds${every > 1 ? `; one step in ${every}` : ""}`;
    return table(caption, ["rollout step", ...arms.flatMap((arm) => [arm.name, "95%", "n"])], rows);
  });
}

// --- forest.js
// The forest of verdicts: a claim's difference on a scale of margins, or of its metric's own unit.


const WIDTH = 300;
const REACH = 12; // margins; what goes further ends in an arrow
const SCORES = ["final_score", "gain", "mean_score", "start", "drawdown"];

/** @param {Claim} claim */
const saysOf = ({ says, where }) => says.replace(/\.$/, "") + (where ? ` (${where})` : "");

/** Return what a claim's differences are in: points of a share, factors, or the unit of the metric. @param {Sweep} sweep @param {Claim} claim */
function quantityOf(sweep, claim) {
  const score = studyOf(sweep, claim.study).score;
  const metric = sweep.metrics[SCORES.includes(claim.metric) ? score.metric : claim.metric];
  const name = claim.metric === "final_score" ? score.name : claim.metric;
  const share = Boolean(metric?.share) && !claim.log;
  return { name: claim.log ? `factor of ${name}` : share ? `${name}, points` : name, times: share ? 100 : 1 };
}

/** Return a claim's combined difference; in own units the mean over tasks has weights of 1 / margin, as it is decided.
 * Factors are returned as logarithms. What has no margin is the plain mean over tasks, with Student's interval.
 * @param {Sweep} sweep @param {Claim} claim @param {boolean} own @returns {Effect | null} */
function effectOf(sweep, claim, own) {
  const { effect, low, high, tasks, log } = claim;
  if (!own) return effect === null || low === null || high === null ? null : { effect, low, high, margin: 1 };
  if (!tasks.length) return null;
  const { times } = quantityOf(sweep, claim);
  if (effect === null || low === null || high === null) {
    const seeds = tasks[0].differences.slice(0, claim.n).map((_, i) => tasks.map(({ differences }) => differences[i]?.[1] ?? NaN));
    const means = seeds.map((values) => values.reduce((sum, value) => sum + (log ? Math.log(value) : value * times), 0) / tasks.length);
    const { mean, half } = meanAndHalf(means, sweep.t95);
    return Number.isFinite(half) ? { effect: mean, low: mean - half, high: mean + half, margin: 0 } : null;
  }
  const inverse = tasks.map(({ margin }) => 1 / (margin === null ? NaN : log ? Math.log(margin) : margin * times));
  const margin = tasks.length / inverse.reduce((sum, one) => sum + one, 0);
  return Number.isFinite(margin) ? { effect: effect * margin, low: low * margin, high: high * margin, margin } : null;
}

/** Return the scale of margins: linear up to two, logarithmic beyond. @returns {Scale} */
function marginScale() {
  const away = (/** @type {number} */ size) => (size <= 2 ? size / 1.8 : 2 / 1.8 + Math.log10(size / 2));
  const half = (WIDTH / 2 - 8) / away(REACH);
  const to = (/** @type {number} */ value) => WIDTH / 2 + Math.sign(value) * half * away(Math.min(REACH, Math.abs(value)));
  return { to, ticks: [-10, -5, -2, -1, 0, 1, 2, 5, 10], text: roundText, ends: [-REACH, REACH] };
}

/** Return a scale in a unit of its own that holds these values.
 * @param {number[]} values @param {boolean} log whether they are logarithms of factors @param {number} [width] @returns {Scale} */
function ownScale(values, log, width = WIDTH) {
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const room = (high - low || 1) * 0.06;
  const ends = /** @type {[number, number]} */ ([low - room, high + room]);
  const to = (/** @type {number} */ value) => 8 + ((value - ends[0]) / (ends[1] - ends[0])) * (width - 16);
  const places = log ? ticks(Math.exp(ends[0]), Math.exp(ends[1]), true).map(Math.log) : ticks(ends[0], ends[1], false);
  return { to, ticks: places, text: (value) => (log ? `×${number(Number(Math.exp(value).toPrecision(3)))}` : roundText(value)), ends };
}

/** Write a difference in a scale's unit. @param {number} value @param {boolean} factor */
const effectText = (value, factor) => factor ? `×${number(Math.exp(value))}` : signed(value);

/** Draw a claim on its scale: the margin in grey, the interval, and its verdict as a mark.
 * @param {Claim} claim @param {Effect} effect @param {Scale} scale @param {number} height */
function strip(claim, effect, scale, height) {
  const { colour } = verdictLook(claim.verdict);
  const { low, high } = effect;
  const { to, ends } = scale;
  const middle = height / 2;
  const [left, right] = [to(Math.max(low, ends[0])), to(Math.min(high, ends[1]))];
  const arrow = (/** @type {boolean} */ leaves, /** @type {number} */ at, /** @type {number} */ way) =>
    leaves && shape("path", { d: `M${at} ${middle - 4}l${6 * way} 4l${-6 * way} 4z`, fill: colour });
  return shape(
    "g",
    {},
    effect.margin > 0 && shape("rect", { x: to(-effect.margin), y: 0, width: to(effect.margin) - to(-effect.margin), height, fill: ink("band") }),
    shape("path", { d: `M${to(0)} 0V${height}`, stroke: ink("soft"), "stroke-opacity": 0.6 }),
    shape("path", { d: `M${left} ${middle}H${right}`, stroke: colour, "stroke-width": 2 }),
    arrow(low < ends[0], left, -1),
    arrow(high > ends[1], right, 1),
    mark(claim, to(Math.max(ends[0], Math.min(ends[1], effect.effect))), middle),
  );
}

/** Draw a verdict's mark; hollow where the claim is not confirmatory.
 * @param {{verdict: string, label: string}} claim @param {number} x @param {number} y */
function mark({ verdict, label }, x, y) {
  const look = verdictLook(verdict);
  const fill = label === "exploratory" ? ink("paper") : look.colour;
  const paint = { fill, stroke: look.colour, "stroke-width": 1.6, "stroke-linejoin": "round" };
  const paths = { up: `M${x} ${y - 5}l5 9h-10z`, down: `M${x} ${y + 5}l5 -9h-10z`, square: `M${x - 4} ${y - 4}h8v8h-8z`, circle: "" };
  const d = paths[look.mark];
  return d ? shape("path", { d, ...paint }) : shape("circle", { cx: x, cy: y, r: 4.4, ...paint });
}

/** @param {Scale} scale @param {number} y */
function axisOf(scale, y) {
  const marks = scale.ticks.flatMap((at) => [
    shape("path", { d: `M${scale.to(at)} ${y}v4`, stroke: ink("soft") }),
    words(scale.to(at), y + 15, scale.text(at), { "text-anchor": "middle", fill: ink("soft"), "font-size": 10 }),
  ]);
  return shape("g", {}, ...marks);
}

/** Return the whole forest as one picture: a row for each claim, as tall as its sentence needs. @param {Group[]} groups */
function drawForest(groups) {
  const lines = groups.map(({ rows }) => rows.map(({ claim }) => wrap(saysOf(claim), 62)));
  const svg = canvas(1040, lines.flat().reduce((sum, one) => sum + 10 + 14 * one.length, 0) + 64 * groups.length + 20);
  let y = 14;
  groups.forEach(({ title, scale, rows }, g) => {
    svg.append(words(14, y + 14, title, { "font-weight": 600, "font-size": 13 }));
    y += 26;
    rows.forEach(({ claim, effect, text }, r) => {
      const tall = 10 + 14 * lines[g][r].length;
      const says = lines[g][r].map((line, i) => words(34, 16 + 14 * i, line));
      svg.append(shape("g", { transform: `translate(0 ${y})` }, mark(claim, 20, tall / 2), ...says));
      if (effect) svg.append(shape("g", { transform: `translate(450 ${y})` }, strip(claim, effect, scale, tall)));
      const found = effect || text.length < 64 ? text : `${wrap(text, 62)[0]} …`;
      const verdict = words(950, y + tall / 2 + 4, claim.word, { fill: verdictLook(claim.verdict).colour });
      svg.append(words(effect ? 765 : 450, y + tall / 2 + 4, found), verdict);
      y += tall;
    });
    if (rows.some(({ effect }) => effect)) svg.append(shape("g", { transform: `translate(450 ${y})` }, axisOf(scale, 0)));
    y += 38;
  });
  return svg;
}

// --- run.js
// One run: its curves beside the baseline's of the same seed, what it set, how it ended, what the doctor found.


const USUAL = ["reward/mean", "entropy/behaviour", "clip/active", "ratio/token_max", "kl_old/k3", "grad_norm"];

/** Show the run that the state names; null if there is none. @param {HTMLElement} root @param {App} app @returns {View | null} */
function runDetail(root, app) {
  const { sweep, go } = app;
  const place = placeOf(sweep, app.state.run, studyOf(sweep, app.state.study));
  if (!place) return null;
  const { run, study, arm, facet, cell } = place;
  const title = `${arm.name}, ${facet}, seed ${cell[3]}`;
  const near = study.cells.filter(([, , f, seed]) => f === cell[2] && seed === cell[3]);
  const base = sweep.runs[near.find(([, a]) => study.arms[a].name === study.baseline)?.[0] ?? -1];
  const other = base === run ? null : base;
  const chosen = () => (app.state.metrics.length ? app.state.metrics : [study.score.metric, ...USUAL]).filter((name) => name in sweep.metrics);
  const add = (/** @type {string} */ name) => go({ metrics: [...new Set([...chosen(), name])] });
  const search = metricSearch("add a curve", sweep.metrics, () => metricsOf(sweep, study), add);
  const addresses = { folder: safeAddress(run.folder), MLflow: safeAddress(run.mlflow) };
  const links = Object.entries(addresses).map(([name, href]) => href && element("a", { href }, name));
  const kept = sweep.samples.some((sample) => sweep.runs[sample.run] === run);
  const tokens = kept && button("its tokens", () => go({ tab: "tokens", sample: run.signature }, true));
  const dot = element("i", { class: "dot", style: `background: ${armColour(arm.colour)}` });
  const ended = `${run.outcome}${run.lost && run.lost !== run.outcome ? `, ${run.lost}` : ""} after ${number(run.steps)} rollout steps`;
  const where = run.marks.map(([step, says]) => `; ${says} at step ${step} (a line in the curves)`).join("");
  const why = (run.seconds ? `, ${duration(run.seconds)}` : "") + where + (run.reason ? `: ${run.reason}` : "");
  const settings = Object.entries(run.settings);
  const findings = run.findings.map(({ confidence, cause, says, evidence, remedy }) => {
    const lines = element("ul", {}, ...evidence.map((line) => element("li", {}, line)));
    return element("li", {}, element("b", {}, cause), ` (${confidence}): ${says}`, lines, remedy && element("p", {}, `Remedy: ${remedy}`));
  });
  const differ = table("settings that differ, in brackets the baseline's", ["setting", "value"], settings);
  const sides = [
    settings.length ? differ : soft("Every setting is the baseline's."),
    findings.length ? element("ul", { class: "findings" }, ...findings) : soft("The doctor found nothing."),
  ];
  const panels = element("div", { class: "panels" });
  const parts = [
    element("header", {}, element("h2", {}, dot, title), element("code", {}, run.signature), ...links, tokens, button("close", () => go({ run: "" }))),
    element("p", { class: run.outcome !== "completed" && "warn" }, ended + why),
    element("div", { class: "sides" }, ...sides),
    element("div", { class: "controls" }, search.node, soft(`${other ? "Grey: the baseline's run of the same seed. " : ""}A click on a title takes its curve away.`)),
  ];
  root.append(element("article", { class: "run" }, ...parts, panels));
  const charts = chartsIn(panels, (zoom) => go({ zoom, x: "rollout_step" }), (title) => go({ metrics: chosen().filter((name) => name !== title) }));

  /** @param {Run} one @param {Arm} look @param {string} name */
  const lineOf = (one, look, name) => {
    const trace = traceOf(one, name, "rollout_step", cell[3], true);
    return trace ? [{ ...look, mean: average([trace], { t95: sweep.t95 }), traces: [] }] : [];
  };
  return {
    update({ x, zoom }) {
      const grey = { name: study.baseline, colour: ink("faint"), dash: [] };
      const panels = chosen().map((name) => {
        const theirs = other ? lineOf(other, grey, name) : [];
        return { title: name, row: name, arms: [...theirs, ...lineOf(run, arm, name)] };
      });
      const names = { title, x: AXES.rollout_step, y: "as the titles say", note: `run ${run.signature}`, marks: run.marks.map(([step]) => step) };
      charts.draw({ ...names, panels, log: false, seeds: false, zoom: x === "rollout_step" ? zoom : [], reference: null });
    },
    seen: () => seenIn(charts.picture, `run ${run.signature}`),
    ...charts,
  };
}

// --- tokens.js
// The tab of tokens: a prompt's whole group, every token in the colour of what happened to it.


const MOST_ROWS = 200; // of a table: it costs more than the coloured text, and CSV has them all
const COLOURS = { ratio: "importance ratio", clip: "clip side", advantage: "advantage", entropy: "entropy", gap: "sampler gap" };
const NOT_KEPT = "this run kept no completions of that prompt at that step";
const SIDES = /** @type {Record<string, string>} */ ({ "^": "clipped above", v: "clipped below", ".": "not clipped" });

/** @typedef {{text: string, ratio: number, log_prob: number, clip: string, advantage: number, entropy: number, gap: number}} Token */
/** @typedef {{name: string, prompt: string | null, completions: {one: Completion, tokens: Token[]}[]}} Shown */

/** @param {Completion} completion @returns {Token[]} */
function tokensOf({ tokens, clip, advantage, ratio, log_prob: logProb, entropy, gap }) {
  const [r, p, e, g] = [ratio, logProb, entropy, gap].map((packed) => numbersOf(packed, tokens.length));
  const same = { advantage: advantage ?? NaN };
  return tokens.map((text, i) => ({ text, ratio: r[i], log_prob: p[i], clip: clip?.[i] ?? "", ...same, entropy: e[i], gap: g[i] }));
}

/** Return how strongly a token is coloured, from -1 to 1; NaN where its number is absent.
 * @param {Token} token @param {string} by @param {number} most the number of the strongest colour */
function strengthOf(token, by, most) {
  if (by === "clip") return token.clip === "^" ? 1 : token.clip === "v" ? -1 : token.clip ? 0 : NaN;
  return Math.max(-1, Math.min(1, valueOf(token, by) / most));
}

/** @param {Token} token @param {string} by */
const valueOf = (token, by) => (by === "ratio" ? Math.log(token.ratio) : token[/** @type {"gap"} */ (by)]);

function shade(/** @type {number} */ strength) {
  const opacity = (Math.abs(strength) * (isDark() ? 0.75 : 0.6)).toFixed(3);
  return strength > 0 ? `rgba(213, 94, 0, ${opacity})` : strength < 0 ? `rgba(0, 114, 178, ${opacity})` : "none";
}

/** @param {HTMLElement} root @param {App} app @returns {View} */
function tokensView(root, app) {
  const { sweep, go } = app;
  const label = (/** @type {Sample} */ sample) => {
    const place = placeOf(sweep, sweep.runs[sample.run].signature);
    return place ? `${place.arm.name}, ${place.facet}, seed ${place.cell[3]}` : sweep.runs[sample.run].signature;
  };
  const options = sweep.samples.map((sample) => /** @type {[string, string]} */ ([sweep.runs[sample.run].signature, label(sample)]));
  const sampleOf = (/** @type {string} */ name) => sweep.samples.find((sample) => sweep.runs[sample.run].signature === name);
  const run = choice("run", options, (sample) => go({ sample }));
  const beside = choice("beside it", [], (signature) => go({ beside: signature }));
  const step = choice("rollout step", [], (value) => go({ step: Number(value) }));
  const prompt = choice("prompt", [], (value) => go({ prompt: Number(value) }));
  const colour = switcher("colour", Object.entries(COLOURS).map(([key, name]) => [key, name, `key ${key[0]}`]), (value) => go({ colour: value }));
  const [legend, groups] = [element("div", { class: "scale" }), element("div", { class: "groups" })];
  const tip = element("div", { class: "tip free", hidden: true });
  root.append(element("div", { class: "controls" }, run.node, beside.node, step.node, prompt.node, colour.node), legend, groups, tip);

  const now = () => {
    const first = sampleOf(app.state.sample) ?? sweep.samples[0];
    const steps = first?.steps ?? [];
    const found = steps.findIndex((one) => one.step === app.state.step);
    const at = found < 0 ? steps.length - 1 : found; // the latest, where something has happened to the ratio
    const place = Math.max(0, Math.min(app.state.prompt, (steps[at]?.prompts.length ?? 1) - 1));
    const wanted = steps[at]?.prompts[place]?.prompt;
    const sameOf = (/** @type {Sample | undefined} */ sample) => {
      const prompts = sample?.steps.find((one) => one.step === steps[at]?.step)?.prompts ?? [];
      return sample === first ? prompts[place] : prompts.find((one) => one.prompt === wanted);
    };
    const shown = [first, sampleOf(app.state.beside)].flatMap((sample) => {
      const same = sameOf(sample);
      const completions = (same?.completions ?? []).map((one) => ({ one, tokens: tokensOf(one) }));
      return sample ? [{ name: label(sample), prompt: same?.prompt ?? null, completions }] : [];
    });
    // One scale for all that is shown, as strong as its strongest token.
    const all = shown.flatMap(({ completions }) => completions.flatMap(({ tokens }) => tokens));
    const most = all.reduce((most, token) => Math.max(most, Math.abs(valueOf(token, app.state.colour)) || 0), 0) || 0.05;
    return { first, steps, at, place, shown, most, sameOf };
  };

  let latest = /** @type {Shown[]} */ ([]);
  function hover(/** @type {PointerEvent} */ event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const [g, c, t] = (target.dataset.token ?? "").split(" ").map(Number);
    const token = latest[g]?.completions[c]?.tokens[t];
    tip.hidden = !token || target.dataset.token === undefined;
    if (tip.hidden) return;
    tip.replaceChildren(...factsOf(token));
    const box = target.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - 210))}px`;
    tip.style.top = `${box.bottom + 170 > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  }
  groups.addEventListener("pointerover", hover);
  groups.addEventListener("pointerleave", () => (tip.hidden = true));

  return {
    update(state) {
      const { first, steps, at, place, shown, most, sameOf } = now();
      if (!first) return groups.replaceChildren(element("p", {}, "No completions were kept, or the page had no room for them."));
      run.set(sweep.runs[first.run].signature);
      // Only runs that have the same prompt: arms share prompts and noise, so that what differs is what they learnt.
      const fits = (/** @type {Sample | undefined} */ sample) => sample !== first && sameOf(sample);
      const others = options.filter(([signature]) => signature === state.beside || fits(sampleOf(signature)));
      beside.set(state.beside, [["", "none"], ...others]);
      step.set(String(steps[at].step), steps.map((one) => String(one.step)));
      prompt.set(String(place), steps[at].prompts.map((one, i) => [String(i), `${i + 1}: ${one.prompt.slice(0, 60)}`]));
      colour.set(state.colour);
      legend.replaceChildren(...legendOf(state.colour, most));
      tip.hidden = true;
      latest = shown;
      groups.replaceChildren(...shown.map((group, g) => groupOf(group, g, state.colour, most)));
    },
    seen() {
      const { steps, at, shown, most } = now();
      const step = steps[at]?.step ?? 0;
      const picture = shown.length ? () => drawTokens(shown, app.state.colour, most) : null;
      return { name: `${sweep.name} tokens step ${step}`, picture, rows: () => rowsOfTokens(shown, step) };
    },
    key(event) {
      const { steps, at, place } = now();
      const by = Object.keys(COLOURS).find((name) => name[0] === event.key);
      const way = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key] ?? 0;
      const within = (/** @type {number} */ i, /** @type {number} */ count) => Math.max(0, Math.min(count - 1, i));
      if (by) go({ colour: by });
      else if (!way || !steps.length) return false;
      else if (/Left|Right/.test(event.key)) go({ step: steps[within(at + way, steps.length)].step });
      else go({ prompt: within(place + way, steps[at].prompts.length) });
      return true;
    },
  };
}

/** What a token is shown as: a line break as a sign and a break. @param {string} text */
const visible = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t") || "∅";

function partsOf(/** @type {Completion} */ { reward, parts, advantage }) {
  const all = Object.entries(parts).map(([name, value]) => `${name} ${number(value)}`);
  return `reward ${number(reward)} (${all.join(", ")}), advantage ${signed(advantage)}`;
}

function textsOf(/** @type {Token} */ { ratio, log_prob: logProb, clip, advantage, entropy, gap }) {
  return [number(ratio, 4), number(logProb, 4), SIDES[clip] ?? "–", signed(advantage), number(entropy), number(gap)];
}
const FACTS = ["ratio", "log-prob", "clip", "advantage", "entropy", "sampler gap"];

function factsOf(/** @type {Token} */ token) {
  const rows = textsOf(token).map((text, i) => text !== "–" && element("tr", {}, element("th", {}, FACTS[i]), element("td", {}, text)));
  return [element("div", {}, element("b", {}, JSON.stringify(token.text))), element("table", {}, ...rows)];
}

/** @param {Shown} group @param {number} g @param {string} by @param {number} most */
function groupOf({ name, prompt, completions }, g, by, most) {
  const items = completions.map(({ one, tokens }, c) => {
    const spans = tokens.map((token, t) => {
      const strength = strengthOf(token, by, most) || 0;
      const side = by !== "clip" || !strength ? null : strength > 0 ? "high" : "low";
      const look = { class: side, style: `background: ${shade(strength)}`, "data-token": `${g} ${c} ${t}` };
      return element("span", look, visible(token.text));
    });
    const parts = element("div", { class: (one.advantage ?? 0) > 0 ? "parts up" : "parts" }, partsOf(one));
    return element("li", {}, parts, element("p", { class: "text" }, ...spans));
  });
  const tables = completions.map(({ one, tokens }, c) =>
    table(`completion ${c + 1}, its first tokens: ${partsOf(one)}`, ["token", ...FACTS], tokens.slice(0, MOST_ROWS).map((token) => [visible(token.text), ...textsOf(token)])),
  );
  const wide = completions.some(({ tokens }) => tokens.length > 40) ? "100%" : "270px"; // short ones stand side by side
  const list = element("ol", { style: `--wide: ${wide}` }, ...items);
  const clips = completions.flatMap(({ tokens }) => tokens.map(({ clip }) => clip));
  const counts = ["^", "v"].map((side) => `${clips.filter((clip) => clip === side).length} ${SIDES[side]}`);
  const head = element("p", { class: "prompt" }, prompt ?? NOT_KEPT);
  const title = element("h3", {}, name, soft(` ${number(clips.length)} tokens: ${counts.join(", ")}`));
  return element("section", { class: "group" }, title, head, list, element("div", { class: "behind" }, ...tables));
}

/** The legend of a colour. @param {string} by @param {number} most */
function legendOf(by, most) {
  const name = COLOURS[/** @type {keyof typeof COLOURS} */ (by)];
  const ends = by === "ratio" ? [number(Math.exp(-most)), "1", number(Math.exp(most))] : [number(-most), "0", number(most)];
  const texts = by === "clip" ? ["clipped below (advantage < 0)", "not clipped", "clipped above (advantage > 0)"] : ends;
  const boxes = texts.flatMap((text, i) => [element("i", { style: `background: ${shade(i - 1)}` }), text]);
  return [element("b", {}, name), ...(by === "entropy" ? boxes.slice(2) : boxes)]; // no entropy is below zero
}

/** @param {Shown[]} shown @param {number} step @returns {(string | number)[][]} */
function rowsOfTokens(shown, step) {
  const head = ["run", "rollout_step", "prompt", "completion", "reward", "place", "token"];
  const rows = shown.flatMap(({ name, prompt, completions }) =>
    completions.flatMap(({ one, tokens }, c) =>
      tokens.map(({ text, ...numbers }, t) => [name, step, prompt ?? "", c, one.reward ?? NaN, t, text, ...Object.values(numbers)]),
    ),
  );
  return [[...head, "ratio", "log_prob", "clip", "advantage", "entropy", "gap"], ...rows];
}

/** Return the groups as a picture, in letters of one width. @param {Shown[]} shown @param {string} by @param {number} most */
function drawTokens(shown, by, most) {
  const [perLine, wide] = [84, 7.3];
  const body = shape("g", { "font-family": "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", "font-size": 12 });
  let y = 8;
  for (const { name, prompt, completions } of shown) {
    body.append(words(12, (y += 18), name, { "font-weight": 600 }), words(12, (y += 18), (prompt ?? NOT_KEPT).slice(0, perLine)));
    for (const { one, tokens } of completions) {
      body.append(words(12, (y += 20), partsOf(one).slice(0, perLine), { fill: ink("soft"), "font-size": 10 }));
      y += 16;
      let column = 0;
      for (const token of tokens) {
        const text = visible(token.text).replaceAll(/\s/g, "\u00a0").slice(0, perLine);
        if (column + text.length > perLine) [column, y] = [0, y + 18];
        const box = { x: 12 + column * wide, y: y - 12, width: text.length * wide, height: 16 };
        body.append(shape("rect", { ...box, fill: shade(strengthOf(token, by, most) || 0) }), words(box.x, y, text));
        column += text.length;
      }
    }
    y += 16;
  }
  const svg = canvas(24 + perLine * wide, y);
  svg.append(body);
  return svg;
}

// --- evidence.js
// The evidence of a claim as a picture: each seed's paired difference, task by task.


const BROAD = 460;
const ROW = 64;

/** Return the difference of each seed as rows, their head first. @param {Claim} claim @returns {(string | number)[][]} */
function differencesOf(claim) {
  const head = ["task", "seed", claim.log ? `factor of ${claim.metric}` : `difference in ${claim.metric}`, "margin", "used"];
  const rows = claim.tasks.flatMap(({ name, margin, differences }) =>
    differences.map(([seed, value], i) => [name, seed, value ?? NaN, margin ?? NaN, i < claim.n ? "yes" : claim.n ? "came later" : "before the first look"]),
  );
  return [head, ...rows];
}

/** Draw each seed's difference by task, with their mean, its 95% interval and the margin. @param {Sweep} sweep @param {Claim} claim */
function drawDots(sweep, claim) {
  const quantity = quantityOf(sweep, claim);
  const scaled = (/** @type {number | null} */ value) => (value === null ? NaN : claim.log ? Math.log(value) : value * quantity.times);
  const tasks = claim.tasks.map(({ name, start, margin, differences }) => {
    const all = differences.map(([seed, value], i) => ({ seed, value: scaled(value), early: i < claim.n }));
    const seeds = all.filter((one) => Number.isFinite(one.value));
    return { name, start, seeds, margin: scaled(margin), ...meanAndHalf(seeds.filter((one) => one.early).map((one) => one.value), sweep.t95) };
  });
  const ends = tasks.flatMap(({ seeds, margin, mean, half }) => [...seeds.map((one) => one.value), margin, -margin, mean - half, mean + half]);
  const scale = ownScale(ends.filter(Number.isFinite), claim.log, BROAD);
  const { to } = scale;
  const { colour } = verdictLook(claim.verdict);
  const height = tasks.length * ROW + 40;
  const label = `difference of each seed, ${quantity.name}`;
  const picture = shape("svg", { width: BROAD, height, viewBox: `0 0 ${BROAD} ${height}`, role: "img", "aria-label": label });
  tasks.forEach(({ name, start, seeds, margin, mean, half }, row) => {
    const y = row * ROW;
    const title = name + (start === null ? "" : `, start ${number(start)}`) + (Number.isFinite(mean) ? `: ${effectText(mean, claim.log)}` : "");
    picture.append(words(8, y + 12, title, { fill: ink("ink"), "font-size": 11.5 }));
    if (margin > 0) picture.append(shape("rect", { x: to(-margin), y: y + 18, width: to(margin) - to(-margin), height: 40, fill: ink("band") }));
    picture.append(shape("path", { d: `M${to(0)} ${y + 18}v40`, stroke: ink("soft") }));
    const lines = (half >= 0 ? `M${to(mean - half)} ${y + 48}H${to(mean + half)}` : "") + (Number.isFinite(mean) ? `M${to(mean)} ${y + 42}v12` : "");
    picture.append(shape("path", { d: lines, stroke: colour, "stroke-width": 2.2 }));
    seeds.forEach(({ seed, value, early }, i) => {
      const place = { cx: to(value), cy: y + 28 + ((i % 3) - 1) * 5, r: 3.6 };
      const title = shape("title", {}, `seed ${seed}: ${effectText(value, claim.log)}${early ? "" : claim.n ? " (came later)" : " (before the first look)"}`);
      picture.append(shape("circle", { ...place, fill: early ? colour : ink("paper"), "fill-opacity": 0.75, stroke: colour }, title));
    });
  });
  const caption = `${claim.contrast}: ${quantity.name}; bar: mean of the seeds used, 95%`;
  picture.append(axisOf(scale, height - 40), words(8, height - 8, caption, { fill: ink("soft"), "font-size": 10 }));
  return picture;
}

/** Return the evidence as a picture of its own, the sentence above it. @param {Sweep} sweep @param {Claim} claim */
function drawEvidence(sweep, claim) {
  const lines = wrap(claim.sentence, 70);
  const dots = drawDots(sweep, claim);
  const top = 20 + 15 * lines.length;
  const svg = canvas(BROAD + 24, top + Number(dots.getAttribute("height")) + 8);
  svg.append(...lines.map((line, i) => words(12, 20 + 15 * i, line)), shape("g", { transform: `translate(12 ${top})` }, ...dots.childNodes));
  return svg;
}

// --- runs.js
// The tab of runs: a table that sorts and filters, and behind each row the run itself.


const MOST = 300; // rows at first
const HEAD = ["study", "arm", "facet", "seed", "outcome", "start", "best", "final", "steps", "seconds", "findings"];
const NUMBERS = ["seed", "start", "best", "final", "steps", "seconds"];

/** @typedef {{run: Run | null, arm: Arm, cells: (string | number)[], text: string}} Row */

/** @param {HTMLElement} root @param {App} app @returns {View} */
function runsView(root, app) {
  const { sweep, go } = app;
  const studies = choice("study", [["", "all studies"], ...sweep.studies.map(({ name }) => name)], (study) => go({ study }));
  const placeholder = "arm, task, outcome, cause, signature";
  const find = element("input", { type: "search", spellcheck: "false", placeholder, oninput: () => go({ find: find.value }) });
  const count = soft("");
  const [detail, body] = [element("div"), element("tbody")];
  // A column goes up, then down, then back to the order of the study.
  const sort = (/** @type {string} */ name) => ({ [name]: `-${name}`, [`-${name}`]: "" })[app.state.sort] ?? name;
  const heads = HEAD.map((name) => element("th", { class: NUMBERS.includes(name) && "number" }, button(name, () => go({ sort: sort(name) }))));
  const more = button("", () => show(rows.length));
  const filter = element("label", { class: "control" }, element("span", {}, "filter"), find);
  root.append(
    element("div", { class: "controls" }, sweep.studies.length > 1 && studies.node, filter, count),
    detail,
    element("div", { class: "wide runs" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)),
    more,
  );
  let rows = /** @type {Row[]} */ ([]);
  let [listed, opened] = ["", ""];
  let open = /** @type {View | null} */ (null);

  function show(/** @type {number} */ most) {
    body.replaceChildren(...rows.slice(0, most).map((row) => tableRow(app, row)));
    more.hidden = rows.length <= most;
    more.textContent = `show all ${rows.length}`;
  }

  return {
    update(state) {
      studies.set(sweep.studies.some(({ name }) => name === state.study) ? state.study : "");
      if (document.activeElement !== find) find.value = state.find;
      const order = (/** @type {string} */ name) => ({ [name]: "ascending", [`-${name}`]: "descending" })[state.sort] ?? "none";
      heads.forEach((head, i) => head.setAttribute("aria-sort", order(HEAD[i])));
      const asked = JSON.stringify([state.study, state.find, state.sort, state.run, isDark()]);
      if (asked !== listed) {
        listed = asked;
        rows = rowsOfRuns(sweep, state);
        count.textContent = `${rows.length} ${rows.length === 1 ? "cell" : "cells"}`;
        show(MOST);
      }
      if (!open || opened !== state.run) {
        open?.close?.();
        detail.replaceChildren();
        opened = state.run;
        open = runDetail(detail, app);
        detail.firstElementChild?.scrollIntoView({ block: "nearest" });
      }
      open?.update(state);
    },
    seen: () => open?.seen() ?? { name: `${sweep.name} runs`, picture: null, rows: () => [HEAD, ...rows.map((row) => row.cells)] },
    find: () => find.focus(),
    key(event) {
      if (event.key !== "Escape" || !app.state.run) return open?.key?.(event) ?? false;
      go({ run: "" });
      return true;
    },
    close: () => open?.close?.(),
  };
}

/** Return the rows that a filter leaves, in the order that is asked for. @param {Sweep} sweep @param {State} state @returns {Row[]} */
function rowsOfRuns(sweep, state) {
  const asked = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  const one = sweep.studies.filter(({ name }) => name === state.study);
  const rows = (one.length ? one : sweep.studies).flatMap((study) =>
    study.cells.map(([index, a, f, seed]) => {
      const [run, arm] = [sweep.runs[index] ?? null, study.arms[a]];
      const [start, best, final] = run?.score ?? [];
      const outcome = !run ? "missing" : run.outcome + (run.lost && run.lost !== run.outcome ? `, ${run.lost}` : "");
      const causes = run?.findings.map((finding) => finding.cause).join(", ") ?? "";
      const numbers = [start, best, final, run?.steps, run?.seconds].map((value) => value ?? NaN);
      const cells = [study.name, arm.name, study.facets[f], seed, outcome, ...numbers, causes];
      return { run, arm, cells, text: `${cells.join(" ")} ${run?.signature ?? ""} ${run?.reason ?? ""}`.toLowerCase() };
    }),
  );
  const kept = rows.filter(({ text }) => asked.every((word) => text.includes(word)));
  const column = HEAD.indexOf(state.sort.replace(/^-/, ""));
  const way = state.sort.startsWith("-") ? -1 : 1;
  return column < 0 ? kept : kept.sort((a, b) => compare(a.cells[column], b.cells[column], way));
}

/** Compare two cells; absent numbers are last either way. @param {string | number} a @param {string | number} b @param {number} way */
function compare(a, b, way) {
  if (typeof a === "string" || typeof b === "string") return way * String(a).localeCompare(String(b), "en", { numeric: true });
  return Number.isNaN(a) || Number.isNaN(b) ? Number(Number.isNaN(a)) - Number(Number.isNaN(b)) : way * (a - b);
}

/** @param {App} app @param {Row} row */
function tableRow({ state, go }, { run, arm, cells }) {
  const open = state.run !== "" && state.run === run?.signature;
  const onclick = () => go({ run: open || !run ? "" : run.signature }, true);
  const made = cells.map((value, i) => {
    const text = typeof value === "string" ? value : HEAD[i] === "seconds" ? duration(value) : HEAD[i] === "seed" ? String(value) : number(value);
    const warn = HEAD[i] === "outcome" && value !== "completed" && "warn";
    if (HEAD[i] === "arm") return element("th", { scope: "row" }, run ? element("button", { type: "button" }, text) : text);
    return element("td", { class: typeof value === "number" ? "number" : warn }, text);
  });
  made[1].prepend(element("i", { class: "dot", style: `background: ${armColour(arm.colour)}` }));
  return element("tr", { class: open ? "run-open" : run && "run-shut", onclick: run && onclick }, ...made);
}

// --- answer.js
// The tab that comes first: what was decided, and behind each verdict the seeds that decided it.


/** @type {[string, string, string][]} */
const SCALES = [
  ["margins", "margins", "one scale for all: 1 is the smallest difference that matters"],
  ["own", "own units", "accuracy in points, factors where logarithms were tested"],
];

/** @param {Claim} claim */
const nameOf = (claim) => `${claim.study}.${claim.id}${claim.where ? ` ${claim.where}` : ""}`;

/** What was registered stands first, then what was tested, described, and what holds by construction. @param {Claim} claim */
const rankOf = ({ label, verdict }) => (label === "confirmatory" ? 0 : label === "check" ? 3 : verdict === "described" ? 2 : 1);

/** @param {string} verdict @param {string} label */
const icon = (verdict, label) => shape("svg", { width: 14, height: 14, "aria-hidden": "true" }, mark({ verdict, label }, 7, 7));

/** @param {HTMLElement} root @param {App} app @returns {View} */
function answerView(root, app) {
  const { sweep, go } = app;
  const asked = [...new Set(sweep.claims.map((claim) => claim.study))];
  const studies = choice("study", [["", "all questions"], ...asked], (study) => go({ study }));
  const unit = switcher("scale", SCALES, (value) => go({ unit: value }));
  const count = element("p", { class: "verdicts" });
  const list = element("div", { class: "forest" });
  root.append(element("div", { class: "controls" }, asked.length > 1 && studies.node, unit.node, count), list);
  const shown = () => sweep.claims.filter((claim) => !asked.includes(app.state.study) || claim.study === app.state.study);
  const opened = () => sweep.claims.find((claim) => nameOf(claim) === app.state.claim);
  const buttons = () => /** @type {HTMLElement[]} */ (Array.from(list.querySelectorAll("button.claim")));

  return {
    update(state) {
      studies.set(asked.includes(state.study) ? state.study : "");
      unit.set(state.unit);
      const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.claim : undefined;
      const verdicts = Array.from(groupBy(shown(), (claim) => claim.verdict)).sort((a, b) => b[1].length - a[1].length);
      count.replaceChildren(
        ...verdicts.map(([verdict, claims]) => element("span", {}, icon(verdict, "confirmatory"), `${claims.length} ${verdict}`)),
        element("span", {}, icon("inconclusive", "exploratory"), "hollow: exploratory"),
      );
      list.replaceChildren(...groupsOf(sweep, shown(), state.unit === "own").map((group) => sectionOf(app, group)));
      if (!sweep.claims.length) list.append(element("p", {}, "This study states no hypotheses. Curves has its numbers."));
      buttons().find((one) => one.dataset.claim === focused)?.focus();
    },
    seen() {
      const claim = opened();
      if (claim) return { name: nameOf(claim), picture: () => drawEvidence(sweep, claim), rows: () => differencesOf(claim) };
      const groups = groupsOf(sweep, shown(), app.state.unit === "own");
      return { name: `${sweep.name} answers`, picture: () => drawForest(groups), rows: () => rowsOfForest(groups) };
    },
    key(event) {
      if (event.key === "Escape" && app.state.claim) go({ claim: "" });
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const at = buttons().indexOf(/** @type {HTMLElement} */ (document.activeElement));
        buttons()[Math.max(0, Math.min(buttons().length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))]?.focus();
      } else return false;
      return true;
    },
  };
}

/** Return the claims in groups that share a scale: by study in margins, by what is measured in units of its own.
 * @param {Sweep} sweep @param {Claim[]} claims @param {boolean} own @returns {Group[]} */
function groupsOf(sweep, claims, own) {
  const studies = [...new Set(claims.map(({ study }) => study))];
  const place = (/** @type {Claim} */ claim) => (own ? 0 : 10 * studies.indexOf(claim.study)) + rankOf(claim);
  const rows = claims.toSorted((a, b) => place(a) - place(b)).map((claim) => {
    const effect = effectOf(sweep, claim, own);
    const [middle, low, high] = effect ? [effect.effect, effect.low, effect.high].map((value) => effectText(value, own && claim.log)) : [];
    const unit = !own ? "margins" : effect ? quantityOf(sweep, claim).name : "";
    return { claim, effect, unit, text: effect ? `${middle} [${low}, ${high}]` : claim.size };
  });
  const groups = Array.from(groupBy(rows, ({ claim, unit }) => (own ? unit : claim.study)).values(), (members) => {
    const { claim, unit } = members[0];
    const question = own ? "" : sweep.studies.find((one) => one.name === claim.study)?.question ?? "";
    const ends = members.flatMap(({ effect }) => (effect ? [effect.low, effect.high, effect.margin, -effect.margin] : []));
    const title = own ? unit || "counts and trends" : claim.study;
    return { title, question, unit, scale: own ? ownScale(ends, claim.log) : marginScale(), factor: own && claim.log, rows: members };
  });
  return own ? groups.sort((a, b) => Number(!a.unit) - Number(!b.unit) || b.rows.length - a.rows.length) : groups;
}

function rowsOfForest(/** @type {Group[]} */ groups) {
  const head = ["study", "id", "where", "says", "verdict", "label", "unit", "effect", "low", "high", "seeds", "found", "kind"];
  const rows = groups.flatMap(({ unit, factor, rows }) =>
    rows.map(({ claim, effect }) => {
      const numbers = effect ? [effect.effect, effect.low, effect.high].map((value) => (factor ? Math.exp(value) : value)) : ["", "", ""];
      return [claim.study, claim.id, claim.where, claim.says, claim.verdict, claim.label, effect ? unit : "", ...numbers, claim.n, claim.found, claim.kind];
    }),
  );
  return [head, ...rows];
}

/** @param {App} app @param {Group} group */
function sectionOf(app, { title, question, unit, scale, rows }) {
  const { state, go } = app;
  const hasScale = rows.some(({ effect }) => effect);
  const axis = hasScale && shape("svg", { class: "axis", width: WIDTH, height: 20, "aria-hidden": "true" }, axisOf(scale, 0));
  const parts = rows.flatMap(({ claim, effect, text }) => {
    const [name, open] = [nameOf(claim), state.claim === nameOf(claim)];
    const onclick = () => go({ claim: open ? "" : name }, !open);
    const row = element(
      "button",
      { type: "button", class: "claim", "data-claim": name, "aria-expanded": String(open), onclick },
      icon(claim.verdict, claim.label),
      element("span", { class: "says" }, saysOf(claim), !question && element("span", { class: "soft" }, ` ${claim.study}`)),
      effect && shape("svg", { class: "strip", width: WIDTH, height: 26, "aria-hidden": "true" }, strip(claim, effect, scale, 26)),
      element("span", { class: effect ? "value" : "value words", title: text }, text),
      element("span", { class: "verdict", style: `color: ${verdictLook(claim.verdict).colour}` }, claim.word),
    );
    return open ? [row, evidenceOf(app, claim)] : [row];
  });
  const foot = hasScale && element("p", { class: "scale" }, `in ${unit}; grey: too small to matter`);
  return element("section", {}, element("header", {}, element("h2", {}, title), element("p", {}, question), axis), ...parts, foot);
}

/** The seeds and words behind a verdict. @param {App} app @param {Claim} claim */
function evidenceOf({ sweep, go }, claim) {
  const off = studyOf(sweep, claim.study).arms.map(({ name }) => name).filter((name) => claim.arms.length && !claim.arms.includes(name));
  const metric = curveOfClaim(sweep, claim);
  const curves = () => go({ tab: "curves", study: claim.study, metric, off, zoom: [], facet: "", log: claim.log && metric === claim.metric }, true);
  const looks = claim.looks.map((look) => (look === claim.n ? `[${look}]` : String(look))).join(" · ");
  const facts = [
    ["found", claim.found],
    ["size", claim.size],
    ["rollouts", claim.rollouts],
    ["kind", claim.kind + (claim.because ? `: ${claim.because}` : "")],
    ["contrast", claim.contrast],
    ["where", claim.where],
    ["seeds", `${claim.n} used, of ${claim.seeds}`],
    ["looks after", looks && `${looks} seeds`],
    ["p", claim.p === null ? "" : `${probability(claim.p)}; Holm ${probability(claim.adjusted_p)}; q ${probability(claim.q)}`],
    ["label", claim.label + (claim.why ? `: ${claim.why}` : "")],
    ["flags", claim.flags.join("; ")],
    ["source", claim.source],
    ["registered", claim.registered],
  ].flatMap(([name, value]) => (value ? [element("dt", {}, name), element("dd", {}, value)] : []));
  const texts = (/** @type {(string | number)[]} */ row) => row.map((value, i) => (typeof value === "string" || i === 1 ? value : number(value, 4)));
  const [head, ...rows] = differencesOf(claim).map(texts);
  const dots = claim.tasks.length
    ? [element("div", { class: "dots" }, drawDots(sweep, claim)), element("div", { class: "behind" }, table("difference of each seed", head, rows))]
    : [element("p", { class: "soft" }, "A count or a trend: there is no difference of each seed to show.")];
  const open = button("curves of this", curves, { class: "main" });
  const close = button("close", () => go({ claim: "" }));
  const yaml = claim.yaml && element("details", {}, element("summary", {}, "lines of the study file"), element("pre", {}, claim.yaml));
  const sides = element("div", { class: "sides" }, element("div", {}, ...dots), element("dl", {}, ...facts));
  return element("div", { class: "evidence" }, element("p", { class: "sentence" }, claim.sentence), sides, element("p", {}, open, close), yaml);
}

// --- main.js
// The page: tabs, what is seen in the address, keys, saving, and its age while it is written anew.


/** @type {Record<string, (root: HTMLElement, app: App) => View>} */
const VIEWS = { answer: answerView, curves: curvesView, runs: runsView, tokens: tokensView };
const HELP = {
  "1 ... 5": "Answer, Curves, Runs, Tokens, Report",
  "/": "search: a metric, or the filter of the runs",
  "← →": "Curves: step through time (Shift: ten at once). Tokens: another step",
  "↑ ↓": "Answer: another claim; Enter opens it. Tokens: another prompt",
  "+ − 0": "Curves: zoom in, zoom out, everything",
  "r c a e g": "Tokens: colour by ratio, clip side, advantage, entropy, sampler gap",
  t: "the table behind what is seen",
  Escape: "close what is open",
  "mouse on a panel": "drag: zoom; double click: everything; click on its title: this one alone",
  "mouse on a legend": "click: on or off; double click (keyboard: Shift and Enter): this one alone",
  difference: "each seed minus the baseline's run of the same seed, then the mean; a factor where y is logarithmic",
};

/** @param {HTMLElement} root @param {Sweep} sweep */
function start(root, sweep) {
  const report = /** @type {HTMLElement} */ (document.getElementById("text"));
  const loaded = Date.now();
  const app = /** @type {App} */ ({ sweep, state: fromHash(""), go });
  let [view, shown] = [/** @type {View | null} */ (null), ""];

  const tabs = switcher("parts of the page", TABS.map((name) => [name, name[0].toUpperCase() + name.slice(1)]), (tab) => go({ tab }, true));
  const age = element("span", { class: "age", role: "status", title: sweep.written });
  const said = element("span", { class: "said", role: "status" });
  const copy = () => navigator.clipboard.writeText(location.href).then(() => say("copied"), () => say("the address bar has the link"));
  const files = /** @type {const} */ (["png", "svg", "csv"]).map((kind) => {
    const keep = () => view && save(view.seen(), kind).catch((error) => say(String(error)));
    return button(kind.toUpperCase(), keep, { title: `save what is seen as ${kind.toUpperCase()}` });
  });
  const table = button("table", () => go({ table: !app.state.table }), { title: "the table behind what is seen (t)" });
  const keys = Object.entries(HELP).flatMap(([keys, does]) => [element("dt", {}, keys), element("dd", {}, does)]);
  const help = element("dialog", { class: "help" }, element("h2", {}, "Keys and mouse"), element("dl", {}, ...keys));
  help.append(button("close", () => help.close()));
  const place = element("div", { id: "view" });
  const actions = [said, button("copy link", copy), ...files, table, button("?", () => help.showModal(), { title: "keys and mouse" })];
  root.append(
    element("header", { class: "top" }, element("h1", {}, sweep.name), element("p", { class: "question" }, sweep.question), age),
    element("div", { class: "bar", role: "navigation" }, tabs.node, element("div", { class: "actions" }, ...actions)),
    place,
    help,
  );
  root.hidden = false;
  document.documentElement.classList.add("looking");

  function say(/** @type {string} */ text) {
    said.textContent = text;
    setTimeout(() => (said.textContent = ""), 2500);
  }

  /** Change what is seen; `opens`: the browser's Back returns from it. @param {Partial<State>} change @param {boolean} [opens] */
  function go(change, opens = false) {
    app.state = { ...app.state, ...change };
    const hash = `#${toHash(app.state)}`;
    if (hash !== location.hash) history[opens ? "pushState" : "replaceState"](null, "", hash);
    show();
  }

  function show() {
    const { state } = app;
    tabs.set(state.tab);
    document.title = `${sweep.name}: ${state.tab}`;
    report.hidden = state.tab !== "report";
    table.setAttribute("aria-pressed", String(state.table));
    if (state.tab !== shown) {
      view?.close?.();
      place.replaceChildren();
      shown = state.tab;
      view = sweep.studies.length ? (VIEWS[shown]?.(place, app) ?? null) : null;
      if (!view && shown !== "report") place.append("There are no runs yet.");
    }
    place.className = state.table ? `${shown} tables` : shown;
    view?.update(state);
    const seen = view?.seen();
    files.forEach((one, i) => (one.disabled = !seen || (i < 2 && !seen.picture)));
  }

  /** Follow the address: it is a state, or a heading of the report. */
  function read() {
    const named = Array.from(report.querySelectorAll("[id]"));
    const heading = named.find((one) => one.id && new URL(`#${one.id}`, location.href).hash === location.hash);
    app.state = heading ? { ...app.state, tab: "report" } : fromHash(location.hash || (sweep.claims.length ? "" : "tab=curves"));
    show();
    heading?.scrollIntoView();
  }

  function key(/** @type {KeyboardEvent} */ event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || help.open) return;
    const tab = TABS[Number(event.key) - 1];
    if (tab) go({ tab }, true);
    else if (event.key === "?") help.showModal();
    else if (event.key === "t") go({ table: !app.state.table });
    else if (event.key === "/") {
      if (!view?.find) go({ tab: "curves" }, true);
      view?.find?.();
    } else if (!view?.key?.(event)) return;
    event.preventDefault();
  }

  /** Say how old the page is; where it is written anew, load it again in time, but not under a hand. */
  function grow() {
    const { progress, live_s: every } = sweep;
    const written = Date.parse(sweep.written);
    const parts = [`written ${duration(Math.max(0, Math.floor((Date.now() - written) / 1000)))} ago`];
    if (every) parts.push(`anew every ${duration(every)}`);
    if (progress) parts.push(`${progress.done} of ${progress.of} runs`, progress.says);
    age.textContent = parts.filter(Boolean).join("; ");
    // Not more often than it is written, also where nobody writes it any more.
    const due = every && Date.now() - Math.max(written, loaded) > every * 1000 + 1500;
    const busy = document.activeElement?.matches("input, textarea") || document.querySelector("#look :active");
    if (!due || document.hidden || busy || help.open) return;
    sessionStorage.setItem("look-scroll", String(scrollY));
    location.reload();
  }

  addEventListener("hashchange", read);
  addEventListener("keydown", key);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  read();
  grow();
  setInterval(grow, 2000);
  const scroll = sessionStorage.getItem("look-scroll");
  if (scroll) requestAnimationFrame(() => scrollTo(0, Number(scroll)));
  sessionStorage.removeItem("look-scroll");
}

const data = document.getElementById("data")?.textContent;
if (data) start(/** @type {HTMLElement} */ (document.getElementById("look")), JSON.parse(data));
})();
