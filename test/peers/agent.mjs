// A client on the TypeScript SDK v2 at an agent's endpoint: it lists and calls
// tools, reads resources and gets prompts, and prints what came of it as JSON.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const { MCP_URL, MCP_TOKEN, MCP_ERA } = process.env;
const client = new Client({ name: 'peer', version: '1.0.0' }, {
  versionNegotiation: { mode: MCP_ERA === '2026-07-28' ? { pin: MCP_ERA } : 'legacy' },
});
await client.connect(new StreamableHTTPClientTransport(new URL(MCP_URL), {
  requestInit: { headers: { Authorization: `Bearer ${MCP_TOKEN}` } },
}));
const out = { era: client.getProtocolEra() };
out.tools = (await client.listTools()).tools.map((t) => t.name);
out.resources = (await client.listResources()).resources.map((r) => r.uri);
out.templates = (await client.listResourceTemplates()).resourceTemplates.map((r) => r.uriTemplate);
out.prompts = (await client.listPrompts()).prompts.map((p) => p.name);
for (const job of JSON.parse(process.env.MCP_JOBS)) {
  if (job.tool) out[job.tool] = await client.callTool({ name: job.tool, arguments: job.arguments });
  if (job.resource) out[job.resource] = await client.readResource({ uri: job.resource });
  if (job.prompt) out[job.prompt] = await client.getPrompt({ name: job.prompt, arguments: job.arguments });
}
console.log(JSON.stringify(out));
await client.close();
