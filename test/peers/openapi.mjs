// Validates an OpenAPI document and makes the types of a client from it. Test code
// only.
import { readFile, writeFile } from "node:fs/promises";
import { Validator } from "@seriousme/openapi-schema-validator";
import openapiTS, { astToString } from "openapi-typescript";

const [, , file, out] = process.argv;
const document = JSON.parse(await readFile(file, "utf8"));
const validator = new Validator();
const result = await validator.validate(document);
if (!result.valid || validator.version !== "3.1") {
  console.error(validator.version, JSON.stringify(result.errors, null, 1));
  process.exit(1);
}
await writeFile(out, astToString(await openapiTS(document)));
