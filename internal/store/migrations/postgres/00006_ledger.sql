-- +goose Up
ALTER TABLE calls ADD COLUMN target TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN spec TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN idem TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN approval TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN evidence TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN result TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN proof TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN owner TEXT NOT NULL DEFAULT '';
DROP INDEX calls_open;
CREATE INDEX calls_open ON calls (state) WHERE state IN ('dispatched', 'unknown', 'awaiting_approval');
CREATE TABLE claims (
  connection TEXT NOT NULL,
  target     TEXT NOT NULL,
  call       TEXT NOT NULL,
  tool       TEXT NOT NULL,
  spec       TEXT NOT NULL,
  why        TEXT NOT NULL,
  at         BIGINT NOT NULL,
  beside     TEXT NOT NULL,
  PRIMARY KEY (connection, target, call)
);
CREATE UNIQUE INDEX claims_beside ON claims (connection, target, beside);
CREATE INDEX claims_call ON claims (call);
CREATE TABLE approvals (
  id          TEXT PRIMARY KEY,
  call        TEXT NOT NULL,
  run         TEXT NOT NULL,
  agent       TEXT NOT NULL,
  principal   TEXT NOT NULL,
  connection  TEXT NOT NULL,
  version     BIGINT NOT NULL,
  server      TEXT NOT NULL,
  tool        TEXT NOT NULL,
  alias       TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  args_digest TEXT NOT NULL,
  args        BYTEA NOT NULL,
  why         TEXT NOT NULL,
  state       TEXT NOT NULL,
  asked_at    BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL,
  decided_at  BIGINT NOT NULL,
  decided_by  TEXT NOT NULL,
  note        TEXT NOT NULL
);
CREATE INDEX approvals_open ON approvals (state, expires_at) WHERE state IN ('pending', 'approved');
CREATE INDEX approvals_call ON approvals (call);
CREATE INDEX approvals_run ON approvals (run) WHERE state = 'pending';
CREATE INDEX approvals_same ON approvals (args_digest);
CREATE TABLE rules (
  id          TEXT PRIMARY KEY,
  agent       TEXT NOT NULL,
  connection  TEXT NOT NULL,
  server      TEXT NOT NULL,
  tool        TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  mode        TEXT NOT NULL,
  made_by     TEXT NOT NULL,
  at          BIGINT NOT NULL
);
CREATE UNIQUE INDEX rules_tool ON rules (agent, connection, tool);
CREATE TABLE evidence (
  id          TEXT PRIMARY KEY,
  call        TEXT NOT NULL UNIQUE,
  run         TEXT NOT NULL,
  agent       TEXT NOT NULL,
  provider    TEXT NOT NULL,
  connection  TEXT NOT NULL,
  version     BIGINT NOT NULL,
  tool        TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  labels      BIGINT NOT NULL,
  reserved_at BIGINT NOT NULL,
  observed_at BIGINT NOT NULL,
  digest      TEXT NOT NULL
);
CREATE INDEX evidence_run ON evidence (run);
CREATE TABLE lineage (
  owner  TEXT NOT NULL,
  source TEXT NOT NULL,
  PRIMARY KEY (owner, source)
);
CREATE INDEX lineage_source ON lineage (source);
CREATE TABLE memories (
  id           TEXT PRIMARY KEY,
  agent        TEXT NOT NULL,
  run          TEXT NOT NULL,
  author       TEXT NOT NULL,
  conversation TEXT NOT NULL,
  labels       BIGINT NOT NULL,
  body         BYTEA NOT NULL,
  at           BIGINT NOT NULL
);
CREATE INDEX memories_agent ON memories (agent, at);
CREATE TABLE memory_index (
  id    TEXT PRIMARY KEY,
  agent TEXT NOT NULL,
  body  TEXT NOT NULL
);
CREATE INDEX memory_words ON memory_index USING GIN (to_tsvector('simple', body));
ALTER TABLE runs ADD COLUMN parent TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN round BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN conversation TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN labels BIGINT NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX runs_round ON runs (parent, round) WHERE parent <> '';
CREATE TABLE threads (
  conversation TEXT PRIMARY KEY,
  labels       BIGINT NOT NULL
);
ALTER TABLE reviews ADD COLUMN contract TEXT NOT NULL DEFAULT '';
CREATE TABLE audit_2 (
  lane     TEXT NOT NULL DEFAULT 'before',
  id       TEXT NOT NULL,
  at       BIGINT NOT NULL,
  who      TEXT NOT NULL,
  action   TEXT NOT NULL,
  what     TEXT NOT NULL,
  decision TEXT NOT NULL,
  digest   TEXT NOT NULL,
  seal     BIGINT NOT NULL DEFAULT 0,
  CONSTRAINT audit_lane PRIMARY KEY (lane, id)
);
INSERT INTO audit_2 SELECT 'before', id, at, who, action, what, decision, digest, 0 FROM audit;
DROP TABLE audit;
ALTER TABLE audit_2 RENAME TO audit;
CREATE INDEX audit_seal ON audit (lane, seal);
CREATE TABLE checkpoints (
  lane  TEXT NOT NULL,
  n     BIGINT NOT NULL,
  entries BIGINT NOT NULL,
  last  TEXT NOT NULL,
  prev  TEXT NOT NULL,
  hash  TEXT NOT NULL,
  at    BIGINT NOT NULL,
  ranged BIGINT NOT NULL,
  key   TEXT NOT NULL,
  sig   BYTEA NOT NULL,
  PRIMARY KEY (lane, n)
);
CREATE TABLE leases (
  name  TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  until BIGINT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('min_binary', '6') ON CONFLICT (key) DO UPDATE SET value = excluded.value;
-- +goose Down
UPDATE meta SET value = '4' WHERE key = 'min_binary';
DROP TABLE leases; DROP TABLE checkpoints;
CREATE TABLE audit_2 (
  id       TEXT PRIMARY KEY,
  at       BIGINT NOT NULL,
  who      TEXT NOT NULL,
  action   TEXT NOT NULL,
  what     TEXT NOT NULL,
  decision TEXT NOT NULL,
  digest   TEXT NOT NULL
);
INSERT INTO audit_2 SELECT id, at, who, action, what, decision, digest FROM audit;
DROP TABLE audit;
ALTER TABLE audit_2 RENAME TO audit;
ALTER TABLE reviews DROP COLUMN contract;
DROP TABLE threads;
DROP INDEX runs_round;
ALTER TABLE runs DROP COLUMN labels; ALTER TABLE runs DROP COLUMN conversation; ALTER TABLE runs DROP COLUMN round; ALTER TABLE runs DROP COLUMN parent;
DROP TABLE memory_index; DROP TABLE memories; DROP TABLE lineage; DROP TABLE evidence; DROP TABLE rules; DROP TABLE approvals; DROP TABLE claims;
DROP INDEX calls_open;
CREATE INDEX calls_open ON calls (state) WHERE state IN ('dispatched', 'unknown');
ALTER TABLE calls DROP COLUMN owner; ALTER TABLE calls DROP COLUMN proof; ALTER TABLE calls DROP COLUMN result; ALTER TABLE calls DROP COLUMN evidence; ALTER TABLE calls DROP COLUMN approval;
ALTER TABLE calls DROP COLUMN idem; ALTER TABLE calls DROP COLUMN spec; ALTER TABLE calls DROP COLUMN target;
