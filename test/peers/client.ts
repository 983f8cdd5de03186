// A client of Patchbay's API made by openapi-typescript from the running
// server's own document, and used by openapi-fetch. It must type-check, and what
// it does must come out as its types say. Test code only.
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/api.d.ts";

declare const process: { env: Record<string, string>; exit(code: number): never };

const base = process.env.PATCHBAY_URL;
const client = createClient<paths>({ baseUrl: base, headers: { Authorization: `Bearer ${process.env.PATCHBAY_TOKEN}` } });

type Provider = components["schemas"]["Provider"];
type Problem = components["schemas"]["Problem"];

function must<T>(what: string, r: { data?: T; error?: Problem; response: Response }): T {
  if (r.data === undefined) throw new Error(`${what}: ${r.response.status} ${JSON.stringify(r.error)}`);
  return r.data;
}

function check(what: string, ok: boolean): void {
  if (!ok) throw new Error(what);
}

const path = { slug: "general" };
const saved: Provider = must("save", await client.POST("/api/agents/{slug}/mcp/providers", {
  params: { path }, body: { name: "Linear — Support", endpoint: process.env.MCP_URL, token: "", new_account: true },
}));
check("the slug is made of the label", saved.slug === "linear-support");
check("health", saved.catalog?.health === "ok" && !saved.catalog.stale);
const tools = (saved.tools ?? []).map((t) => t.name);
check(`tools: ${tools}`, tools.length > 1);

const one = { ...path, provider: saved.provider_id };
const first = (saved.tools ?? [])[0]!;
const reviewed: Provider = must("enable", await client.POST("/api/agents/{slug}/mcp/providers/{provider}/enable", {
  params: { path: one },
  body: { version: saved.version, keep_state: true, disabled_tools: [tools[1]!],
    tool_classifications: [{ name: first.name, fingerprint: first.fingerprint, class: "query" }] },
}));
check("an exclusion", !(reviewed.tools ?? []).some((t) => t.name === tools[1]));
check("a review", (reviewed.tool_classifications ?? []).some((c) => c.name === first.name && c.class === "query"));

const stale = await client.PUT("/api/agents/{slug}/mcp/providers/{provider}", {
  params: { path: one }, body: { version: saved.version, name: "Other" },
});
check("a stale version is refused", stale.response.status === 409);
check("with both states", stale.error?.code === "conflict" && stale.error.current?.version === reviewed.version && stale.error.submitted !== undefined);

const off: Provider = must("disable", await client.POST("/api/agents/{slug}/mcp/providers/{provider}/disable", { params: { path: one }, body: {} }));
check("off", !off.enabled && (off.tools ?? []).length === 0 && (off.disabled_tools ?? []).length === 1);
const on: Provider = must("enable again", await client.POST("/api/agents/{slug}/mcp/providers/{provider}/enable", {
  params: { path: one }, body: { version: off.version, keep_preferences: true },
}));
check("on with its preferences", on.enabled && (on.disabled_tools ?? []).length === 1);
const again: Provider = must("discover", await client.POST("/api/agents/{slug}/mcp/providers/{provider}/discover", { params: { path: one } }));
check("what is discovered holds what is off too", (again.discovered ?? []).some((t) => t.name === tools[1] && !t.enabled && t.supported));
const list = must("list", await client.GET("/api/agents/{slug}/mcp/providers", { params: { path } }));
check("listed", (list.providers ?? []).some((p) => p.provider_id === saved.provider_id) && list.presets.linear === "https://mcp.linear.app/mcp");
const drift = must("drift", await client.GET("/api/agents/{slug}/mcp/providers/{provider}/drift", { params: { path: one } }));
check("nothing drifted", (drift.tools ?? []).length === 0);

const servers = must("mcp.list", await client.POST("/api/commands/mcp.list", { body: {} }));
check("a command", (servers.servers ?? []).some((s) => s.name === saved.slug));
console.log("ok");
