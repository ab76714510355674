// Makes {{name}}.wasm of plugin.js.
import { writeFile } from "node:fs/promises";
import { componentize } from "@bytecodealliance/componentize-js";

const { component } = await componentize({
  sourcePath: "plugin.js",
  witPath: "wit",
  worldName: "{{world}}",
  // Nothing that asks the system: it would be refused or empty anyway.
  disableFeatures: ["random", "stdio", "clocks", "http", "fetch-event"],
});
await writeFile("{{name}}.wasm", component);
