// A server on the TypeScript SDK v2, which speaks 2026-07-28: one reading tool, one
// that counts, a note to read and a prompt.
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
  server.registerResource('note', 'note://one', { mimeType: 'text/plain' },
    async (uri) => ({ contents: [{ uri: uri.href, mimeType: 'text/plain', text: 'A note on the desk.' }] }));
  server.registerPrompt('welcome', { description: 'Welcomes somebody.', argsSchema: z.object({ name: z.string() }) },
    ({ name }) => ({ messages: [{ role: 'user', content: { type: 'text', text: `Welcome ${name} warmly.` } }] }));
  return server;
});
const listener = toNodeHandler(handler);
http.createServer((req, res) => listener(req, res)).listen(+process.env.PORT, '127.0.0.1');
