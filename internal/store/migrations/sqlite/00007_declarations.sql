-- +goose Up
ALTER TABLE connections ADD COLUMN declared TEXT NOT NULL DEFAULT '{}';
ALTER TABLE runs ADD COLUMN revision BIGINT NOT NULL DEFAULT 1;
ALTER TABLE runs ADD COLUMN servers TEXT NOT NULL DEFAULT '[]';
CREATE TABLE declarations (
  id         TEXT PRIMARY KEY,
  team       TEXT NOT NULL,
  name       TEXT NOT NULL,
  body       TEXT NOT NULL,
  state      TEXT NOT NULL,
  source     TEXT NOT NULL,
  why        TEXT NOT NULL,
  found      TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  decided_at BIGINT NOT NULL,
  decided_by TEXT NOT NULL,
  by_admin   BIGINT NOT NULL
);
CREATE UNIQUE INDEX declarations_proposed ON declarations (team, name) WHERE state = 'proposed';
CREATE UNIQUE INDEX declarations_curated ON declarations (team, name) WHERE state = 'curated';
CREATE INDEX declarations_expiry ON declarations (expires_at) WHERE state = 'proposed';
CREATE INDEX declarations_source ON declarations (source, created_at);
CREATE TABLE destinations (
  name TEXT PRIMARY KEY,
  body TEXT NOT NULL,
  made_by TEXT NOT NULL,
  at   BIGINT NOT NULL
);
CREATE TABLE secrets (
  team    TEXT NOT NULL,
  ref     TEXT NOT NULL,
  rev     BIGINT NOT NULL,
  blob    BLOB NOT NULL,
  made_by TEXT NOT NULL,
  at      BIGINT NOT NULL,
  PRIMARY KEY (team, ref)
);
CREATE TABLE settings (
  scope   TEXT NOT NULL,
  name    TEXT NOT NULL,
  value   TEXT NOT NULL,
  rev     BIGINT NOT NULL,
  made_by TEXT NOT NULL,
  at      BIGINT NOT NULL,
  PRIMARY KEY (scope, name)
);
CREATE TABLE repositories (
  team TEXT PRIMARY KEY,
  body TEXT NOT NULL,
  at   BIGINT NOT NULL
);
CREATE TABLE registry_mirror (
  name       TEXT NOT NULL,
  version    TEXT NOT NULL,
  latest     BIGINT NOT NULL,
  body       TEXT NOT NULL,
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (name, version)
);
CREATE INDEX registry_mirror_updated ON registry_mirror (updated_at);
INSERT INTO meta (key, value) VALUES ('min_binary', '7') ON CONFLICT (key) DO UPDATE SET value = excluded.value;
-- +goose Down
UPDATE meta SET value = '6' WHERE key = 'min_binary';
DROP TABLE registry_mirror; DROP TABLE repositories; DROP TABLE settings; DROP TABLE secrets; DROP TABLE destinations; DROP TABLE declarations;
ALTER TABLE runs DROP COLUMN servers; ALTER TABLE runs DROP COLUMN revision;
ALTER TABLE connections DROP COLUMN declared;
