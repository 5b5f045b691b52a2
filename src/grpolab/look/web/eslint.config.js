import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["bundle.js", "vendor/"] },
  js.configs.recommended,
  { languageOptions: { globals: { ...globals.browser, uPlot: "readonly" } }, rules: { eqeqeq: "error", "no-var": "error", "prefer-const": "error" } },
];
