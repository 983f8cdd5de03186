-- +goose Up
ALTER TABLE principals ADD COLUMN revoked_at BIGINT NOT NULL DEFAULT 0;
CREATE TABLE mcp_clients (
  id          TEXT PRIMARY KEY,
  name        TEXT NOT NULL,
  uri         TEXT NOT NULL,
  redirects   TEXT NOT NULL,
  auth        TEXT NOT NULL,
  secret_hash TEXT NOT NULL,
  refreshes   BIGINT NOT NULL,
  created_at  BIGINT NOT NULL,
  used_at     BIGINT NOT NULL
);
CREATE INDEX mcp_clients_unused ON mcp_clients (created_at) WHERE used_at = 0;
CREATE TABLE authorizations (
  id         TEXT PRIMARY KEY,
  person     TEXT NOT NULL,
  client     TEXT NOT NULL,
  name       TEXT NOT NULL,
  host       TEXT NOT NULL,
  print      TEXT NOT NULL,
  path       TEXT NOT NULL,
  team       TEXT NOT NULL,
  rights     BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  used_at    BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  revoked_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX authorizations_live ON authorizations (person, client, path) WHERE revoked_at = 0;
CREATE INDEX authorizations_client ON authorizations (client);
CREATE TABLE signins (
  id             TEXT PRIMARY KEY,
  authorized TEXT NOT NULL,
  client         TEXT NOT NULL,
  team           TEXT NOT NULL,
  rights         BIGINT NOT NULL,
  challenge      TEXT NOT NULL,
  redirect       TEXT NOT NULL,
  refreshes      BIGINT NOT NULL,
  created_at     BIGINT NOT NULL,
  redeemed_at    BIGINT NOT NULL,
  gen            BIGINT NOT NULL,
  rotated_at     BIGINT NOT NULL,
  answer         BLOB NOT NULL,
  expires_at     BIGINT NOT NULL,
  ended_at       BIGINT NOT NULL
);
CREATE INDEX signins_authorization ON signins (authorized);
CREATE TABLE client_tokens (
  hash       TEXT PRIMARY KEY,
  signin     TEXT NOT NULL,
  kind       TEXT NOT NULL,
  gen        BIGINT NOT NULL,
  expires_at BIGINT NOT NULL
);
CREATE INDEX client_tokens_signin ON client_tokens (signin);
CREATE INDEX client_tokens_over ON client_tokens (expires_at);
-- +goose Down
DROP TABLE client_tokens;
DROP TABLE signins;
DROP TABLE authorizations;
DROP TABLE mcp_clients;
ALTER TABLE principals DROP COLUMN revoked_at;
