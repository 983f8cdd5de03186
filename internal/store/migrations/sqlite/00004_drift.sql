-- +goose Up
ALTER TABLE catalogs ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE catalogs ADD COLUMN instructions_before TEXT NOT NULL DEFAULT '';
ALTER TABLE catalogs ADD COLUMN instructions_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX catalogs_seq ON catalogs (seq);
ALTER TABLE definitions ADD COLUMN held TEXT NOT NULL DEFAULT '';
CREATE TABLE extras (
  connection TEXT NOT NULL,
  kind       TEXT NOT NULL,
  ord        BIGINT NOT NULL,
  raw        BLOB NOT NULL,
  PRIMARY KEY (connection, kind, ord)
);
CREATE TABLE pins (
  connection  TEXT NOT NULL,
  name        TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  raw         BLOB NOT NULL,
  at          BIGINT NOT NULL,
  before      BLOB NOT NULL,
  changed_at  BIGINT NOT NULL,
  accepted_by TEXT NOT NULL,
  blocked_by  TEXT NOT NULL,
  PRIMARY KEY (connection, name)
);
CREATE TABLE refreshes (
  connection  TEXT PRIMARY KEY,
  due_at      BIGINT NOT NULL,
  tries       BIGINT NOT NULL,
  parked      BIGINT NOT NULL,
  fence       BIGINT NOT NULL,
  owner       TEXT NOT NULL,
  lease_until BIGINT NOT NULL,
  rounds      BIGINT NOT NULL
);
CREATE INDEX refreshes_due ON refreshes (due_at);
ALTER TABLE connections ADD COLUMN slot BIGINT NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX connections_slot ON connections (scope, endpoint) WHERE slot = 1 AND removed_at = 0;
INSERT INTO meta (key, value) VALUES ('min_binary', '4') ON CONFLICT (key) DO UPDATE SET value = excluded.value;
-- +goose Down
DROP INDEX connections_slot;
ALTER TABLE connections DROP COLUMN slot;
DROP TABLE refreshes; DROP TABLE pins; DROP TABLE extras;
ALTER TABLE definitions DROP COLUMN held;
DROP INDEX catalogs_seq;
ALTER TABLE catalogs DROP COLUMN instructions_at; ALTER TABLE catalogs DROP COLUMN instructions_before; ALTER TABLE catalogs DROP COLUMN seq;
DELETE FROM meta WHERE key = 'min_binary';
