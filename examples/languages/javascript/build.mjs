// Makes at-most.wasm of at-most.js.
import { writeFile } from "node:fs/promises";
import { componentize } from "@bytecodealliance/componentize-js";

const { component } = await componentize({
  sourcePath: "at-most.js",
  witPath: "../../../wit",
  worldName: "token-plugin",
  // Nothing that asks the system: it would be refused or empty anyway.
  disableFeatures: ["random", "stdio", "clocks", "http", "fetch-event"],
});
await writeFile("at-most.wasm", component);
