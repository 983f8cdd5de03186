// A server on the TypeScript SDK v2, which speaks 2026-07-28: one reading tool,
// one that counts.
import http from 'node:http';
import { McpServer, createMcpHandler } from '@modelcontextprotocol/server';
import { toNodeHandler } from '@modelcontextprotocol/node';
import * as z from 'zod';

let count = 0;
const handler = createMcpHandler(() => {
  const server = new McpServer({ name: 'peer-ts2026', version: '1.0.0' });
  server.registerTool('greet', {
    description: 'Greets somebody by name.',
    inputSchema: z.object({ name: z.string() }),
    annotations: { readOnlyHint: true },
  }, async ({ name }) => ({ content: [{ type: 'text', text: `Hello ${name}, from another SDK.` }] }));
  server.registerTool('count', {
    description: 'Counts one further.',
    inputSchema: z.object({}),
  }, async () => ({ content: [{ type: 'text', text: `The count is ${++count}.` }] }));
  return server;
});
const listener = toNodeHandler(handler);
http.createServer((req, res) => listener(req, res)).listen(+process.env.PORT, '127.0.0.1');
