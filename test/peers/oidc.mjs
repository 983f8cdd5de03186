// An authorization server on oidc-provider and, beside it, a protected MCP server
// on the TypeScript SDK, for end-to-end tests. One account, whose login and
// consent pages are the library's own.
//
//   PORT        of the authorization server
//   MCP_PORT    of the MCP server
//   ACCESS_TTL  life of an access token, in seconds
//   CIMD        the public origin whose client ID metadata document is accepted,
//               and no registration; CIMD_AT is where that origin really listens
//   CLIENT      a client of its own as JSON, for signing people in
import { createServer } from 'node:http';
import { Provider } from 'oidc-provider';
import { createRemoteJWKSet, jwtVerify } from 'jose';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

const port = Number(process.env.PORT), mcpPort = Number(process.env.MCP_PORT);
const issuer = `http://127.0.0.1:${port}`, resource = `http://127.0.0.1:${mcpPort}/mcp`;
const ttl = Number(process.env.ACCESS_TTL ?? 5);

const provider = new Provider(issuer, {
  scopes: ['openid', 'email', 'profile', 'offline_access', 'notes:read', 'notes:write'],
  features: {
    devInteractions: { enabled: true },
    introspection: { enabled: true },
    registration: { enabled: !process.env.CIMD },
    revocation: { enabled: true },
    ...(process.env.CIMD ? { clientIdMetadataDocument: { enabled: true, ack: 'draft-02' } } : {}),
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo(_ctx, indicator) {
        if (indicator !== resource) throw Object.assign(new Error('invalid_target'), { error: 'invalid_target', statusCode: 400, expose: true });
        return { scope: 'notes:read notes:write', audience: resource, accessTokenTTL: ttl, accessTokenFormat: 'jwt' };
      },
    },
  },
  ...(process.env.CIMD ? { fetch: (url, options) => globalThis.fetch(String(url).replace(process.env.CIMD, process.env.CIMD_AT), { headers: options?.headers }) } : {}),
  ...(process.env.CLIENT ? { clients: [JSON.parse(process.env.CLIENT)] } : {}),
  claims: { email: ['email', 'email_verified'] },
  findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true }) }),
  clientDefaults: { token_endpoint_auth_method: 'none' },
  issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
  cookies: { keys: ['test'] },
  ttl: { AccessToken: ttl, AuthorizationCode: 60, Grant: 3600, IdToken: 300, Interaction: 600, RefreshToken: 3600, Session: 3600 },
});
for (const event of ['grant.error', 'authorization.error', 'registration_create.error', 'server_error']) {
  provider.on(event, (_ctx, error) => console.error(event, error?.error_description ?? error?.message));
}
// Tests withdraw every grant of the account here.
const grants = new Set();
provider.on('grant.success', (ctx) => { if (ctx.oidc.entities.Grant) grants.add(ctx.oidc.entities.Grant.jti); });
provider.use(async (ctx, next) => {
  if (ctx.path !== '/test/withdraw') return next();
  for (const id of grants) {
    await Promise.all(['AccessToken', 'RefreshToken', 'AuthorizationCode'].map((kind) => provider[kind].revokeByGrantId(id)));
    await (await provider.Grant.find(id))?.destroy();
  }
  grants.clear();
  ctx.body = 'withdrawn\n';
});
provider.listen(port, '127.0.0.1');

const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));
const challenge = (res, extra = '') => {
  res.writeHead(401, { 'WWW-Authenticate': `Bearer resource_metadata="http://127.0.0.1:${mcpPort}/.well-known/oauth-protected-resource/mcp"${extra}` });
  res.end();
};
createServer(async (req, res) => {
  if (req.url === '/.well-known/oauth-protected-resource/mcp') {
    res.writeHead(200, { 'Content-Type': 'application/json' });
    res.end(JSON.stringify({ resource, authorization_servers: [issuer], scopes_supported: ['notes:read', 'notes:write'] }));
    return;
  }
  const token = /^Bearer (.+)$/.exec(req.headers.authorization ?? '')?.[1];
  if (!token) return challenge(res);
  try {
    await jwtVerify(token, keys, { issuer, audience: resource });
  } catch {
    return challenge(res, ', error="invalid_token"');
  }
  const server = new McpServer({ name: 'notes', version: '1.0.0' });
  server.registerTool('latest_note', { description: 'Reads the latest note.', inputSchema: { folder: z.string().optional() }, annotations: { readOnlyHint: true } },
    async () => ({ content: [{ type: 'text', text: 'The latest note says: buy oat milk.' }] }));
  server.registerTool('add_note', { description: 'Writes a note.', inputSchema: { text: z.string() } },
    async ({ text }) => ({ content: [{ type: 'text', text: `Noted: ${text}` }] }));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  res.on('close', () => { transport.close(); server.close(); });
  await server.connect(transport);
  await transport.handleRequest(req, res);
}).listen(mcpPort, '127.0.0.1');
