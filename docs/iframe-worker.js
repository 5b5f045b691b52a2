// Search from the disk: browsers refuse a page at file:// a worker, so a hidden frame does its work. The theme would
// fetch such a script otherwise.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.terminate = () => frame.remove();
      this.ready = new Promise((begin) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          // As a worker's, messages are copies, and arrive later than they are sent.
          inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
          const script = inside.document.createElement("script");
          script.src = new URL(address, document.baseURI).href;
          script.onload = () => begin(inside);
          inside.document.body.append(script);
        };
      });
      document.body.append(frame);
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then((inside) => inside.onmessage({ data: copy }));
    }
  };
}
