// A client on the TypeScript SDK v2 that signs its person in: it says where to send the
// browser, takes the code back at its own address, and calls a tool once for every line that
// it reads. What it keeps is in memory. Test code only.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';

const { MCP_URL, MCP_ERA, PORT, CLIENT_DOCUMENT } = process.env;
const kept = {};
let back;
const came = new Promise((done) => { back = done; });
createServer((req, res) => {
  const at = new URL(req.url, 'http://127.0.0.1');
  res.end('<title>Back at the client</title>');
  if (at.searchParams.has('code') || at.searchParams.has('error')) back(at.searchParams);
}).listen(Number(PORT), '127.0.0.1');

const provider = {
  redirectUrl: `http://127.0.0.1:${PORT}/callback`,
  clientMetadataUrl: CLIENT_DOCUMENT || undefined,
  clientMetadata: { client_name: 'TypeScript peer', redirect_uris: [`http://127.0.0.1:${PORT}/callback`], grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'none' },
  state: () => 'the-state',
  clientInformation: () => kept.client,
  saveClientInformation: (c) => { kept.client = c; },
  tokens: () => kept.tokens,
  saveTokens: (t) => { kept.tokens = t; kept.times = (kept.times ?? 0) + 1; },
  saveCodeVerifier: (v) => { kept.verifier = v; },
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (d) => { kept.discovery = d; },
  discoveryState: () => kept.discovery,
  redirectToAuthorization: (url) => console.log(`open ${url}`),
};
const options = { versionNegotiation: { mode: MCP_ERA === '2026-07-28' ? { pin: MCP_ERA } : 'legacy' } };
const dial = () => new StreamableHTTPClientTransport(new URL(MCP_URL), { authProvider: provider });

let transport = dial();
let client = new Client({ name: 'peer', version: '1.0.0' }, options);
try {
  await client.connect(transport);
  throw new Error('nobody asked for a sign-in');
} catch (e) {
  if (!(e instanceof UnauthorizedError)) throw e;
}
const answer = await came;
if (answer.get('state') !== 'the-state') throw new Error(`the state is ${answer.get('state')}`);
await transport.finishAuth(answer);
transport = dial();
client = new Client({ name: 'peer', version: '1.0.0' }, options);
await client.connect(transport);
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'end') break;
  const tools = (await client.listTools()).tools.map((t) => t.name);
  const out = await client.callTool({ name: tools[0], arguments: {} });
  console.log(JSON.stringify({ tools, text: out.content[0].text, client: kept.client?.client_id, times: kept.times, refreshes: Boolean(kept.tokens.refresh_token) }));
}
process.exit(0);
