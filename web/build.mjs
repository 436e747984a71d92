// Bundles src/ into the package. The first line of the bundle has a digest of its sources, which a test compares.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const digest = createHash("sha256");
for (const name of readdirSync("src").sort()) digest.update(`${name}\n`).update(readFileSync(`src/${name}`));
digest.update(readFileSync("package.json"));

const out = "../semimetric/serve/page/static";
await build({
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  legalComments: "none",
  outfile: `${out}/page.js`,
  banner: { js: `/* sources ${digest.digest("hex")}; licences in LICENSES.txt */` },
});

const bundled = ["regl-scatterplot", "regl", "regl-line", "dom-2d-camera", "camera-2d-simple", "gl-matrix", "pub-sub-es", "earcut", "d3-contour", "d3-array"];
const texts = bundled.map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  return `${name} ${version} (${license})\n\n${file ? readFileSync(`${folder}/${file}`, "utf8").trim() : "No licence file; see the name of the licence above."}\n`;
});
writeFileSync(`${out}/LICENSES.txt`, `Parts of page.js that others wrote:\n\n${texts.join("\n----\n\n")}`);
