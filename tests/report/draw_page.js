// Runs the script of a page with stand-ins for the parts of a browser that it uses, and prints what it did as JSON.
"use strict";
const page = require("fs").readFileSync(process.argv[2], "utf8");
const found = { library: "", drawn: [], messages: [] };

globalThis.window = { matchMedia: () => ({ addEventListener() {} }) };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#fff", fontFamily: "sans-serif" });
globalThis.Plotly = { newPlot: (name) => found.drawn.push(name) };
globalThis.document = {
  body: {}, documentElement: {},
  getElementById: (name) => ({ textContent: page.match(new RegExp(`id="${name}">([^<]*)</script>`))[1] }),
  querySelectorAll: () => [],
  querySelector: () => ({ prepend: (element) => found.messages.push(element.textContent) }),
  createElement: () => ({}),
  head: { append: (script) => (found.library = script.textContent.slice(0, 100)) },
};
(0, eval)(page.match(/<script>([^]*?)<\/script>/)[1]);
process.on("beforeExit", () => console.log(JSON.stringify(found)) || process.exit(0));
