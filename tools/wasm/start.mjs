// Runs pytest on the CPython that Pyodide has compiled to WebAssembly: `node tools/wasm/start.mjs FOLDER ARGUMENT…`,
// where FOLDER contains Pyodide in node_modules and its packages in site. Exits with the status of pytest.
import { writeSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [folder, ...pytestArguments] = process.argv.slice(2);
const { loadPyodide } = createRequire(`${resolve(folder)}/`)("pyodide");
const { FULL = "", HYPOTHESIS_PROFILE = "house" } = process.env;
const python = await loadPyodide({ env: { HOME: "/root", FULL, HYPOTHESIS_PROFILE } });
for (const [stream, descriptor] of [["setStdout", 1], ["setStderr", 2]]) {
  python[stream]({ write: (bytes) => writeSync(descriptor, bytes), isatty: false });
}
for (const [place, root] of [["/root", resolve(import.meta.dirname, "../..")], ["/site", resolve(folder, "site")]]) {
  python.FS.mkdirTree(place);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, place);
}
const main = python.runPython(`
import os, sys
os.chdir("/root")
sys.path[:0] = ["/root/src", "/site", "/root/tools/wasm"]
from pytest_in_wasm import main
main
`);
try {
  process.exit(main(python.toPy(pytestArguments)));
} catch (error) {  // from Pyodide; Node would print the line of its source, which is the complete source
  console.error(String(error.stack).slice(0, 2000));
  process.exit(70);
}
