-- +goose Up
CREATE TABLE connections_2 (
  id         TEXT PRIMARY KEY,
  scope      TEXT NOT NULL,
  slug       TEXT NOT NULL,
  label      TEXT NOT NULL,
  endpoint   TEXT NOT NULL,
  auth       TEXT NOT NULL,
  enabled    BIGINT NOT NULL,
  version    BIGINT NOT NULL,
  digest     TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  origin     TEXT NOT NULL,
  agents     TEXT NOT NULL,
  state      TEXT NOT NULL,
  reason     TEXT NOT NULL,
  oauth      TEXT NOT NULL,
  removed_at BIGINT NOT NULL
);
INSERT INTO connections_2 SELECT id, scope, slug, label, endpoint, auth, enabled, version, digest, created_at,
  'config', 'pinned', '[]', 'connected', '', '{}', 0 FROM connections;
DROP TABLE connections;
ALTER TABLE connections_2 RENAME TO connections;
CREATE UNIQUE INDEX connections_name ON connections (scope, slug, origin) WHERE removed_at = 0;
CREATE TABLE credentials (
  connection TEXT PRIMARY KEY,
  scope      TEXT NOT NULL,
  rev        BIGINT NOT NULL,
  blob       BYTEA NOT NULL,
  expires_at BIGINT NOT NULL,
  started_at BIGINT NOT NULL,
  tries      BIGINT NOT NULL
);
CREATE TABLE tickets (
  hash       TEXT PRIMARY KEY,
  id         TEXT NOT NULL,
  connection TEXT NOT NULL,
  version    BIGINT NOT NULL,
  kind       TEXT NOT NULL,
  asker      TEXT NOT NULL,
  email      TEXT NOT NULL,
  opened_by  TEXT NOT NULL,
  state      TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  pending    BYTEA NOT NULL,
  outcome    TEXT NOT NULL,
  superseded BIGINT NOT NULL,
  back       TEXT NOT NULL
);
CREATE INDEX tickets_connection ON tickets (connection, state);
CREATE INDEX tickets_expiry ON tickets (expires_at);
CREATE TABLE oauth_clients (
  issuer   TEXT NOT NULL,
  redirect TEXT NOT NULL,
  blob     BYTEA NOT NULL,
  made_at  BIGINT NOT NULL,
  PRIMARY KEY (issuer, redirect)
);
CREATE TABLE revocations (
  id     TEXT PRIMARY KEY,
  blob   BYTEA NOT NULL,
  tries  BIGINT NOT NULL,
  due_at BIGINT NOT NULL
);
CREATE TABLE principals (
  id      TEXT PRIMARY KEY,
  email   TEXT NOT NULL,
  name    TEXT NOT NULL,
  seen_at BIGINT NOT NULL
);
CREATE INDEX principals_email ON principals (email);
CREATE TABLE identities (
  subject TEXT PRIMARY KEY,
  person  TEXT NOT NULL
);
CREATE TABLE web_sessions (
  hash       TEXT PRIMARY KEY,
  person     TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  seen_at    BIGINT NOT NULL
);
CREATE TABLE tokens (
  id         TEXT PRIMARY KEY,
  hash       TEXT NOT NULL UNIQUE,
  label      TEXT NOT NULL,
  person     TEXT NOT NULL,
  agent      TEXT NOT NULL,
  team       TEXT NOT NULL,
  rights     BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at    BIGINT NOT NULL,
  revoked_at BIGINT NOT NULL
);
ALTER TABLE runs ADD COLUMN caller TEXT NOT NULL DEFAULT '';
-- +goose Down
DROP TABLE tokens; DROP TABLE web_sessions; DROP TABLE identities; DROP TABLE principals; DROP TABLE revocations;
DROP TABLE oauth_clients; DROP TABLE tickets; DROP TABLE credentials;
