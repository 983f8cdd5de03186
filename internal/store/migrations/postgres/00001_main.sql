-- +goose Up
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
);
CREATE TABLE connections (
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
  UNIQUE (scope, slug)
);
CREATE TABLE catalogs (
  connection   TEXT PRIMARY KEY,
  version      BIGINT NOT NULL,
  revision     BIGINT NOT NULL,
  health       TEXT NOT NULL,
  detail       TEXT NOT NULL,
  captured_at  BIGINT NOT NULL,
  failed_at    BIGINT NOT NULL,
  instructions TEXT NOT NULL,
  server       TEXT NOT NULL
);
CREATE TABLE definitions (
  connection  TEXT NOT NULL,
  ord         BIGINT NOT NULL,
  fingerprint TEXT NOT NULL,
  class       TEXT NOT NULL,
  raw         BYTEA NOT NULL,
  PRIMARY KEY (connection, ord)
);
CREATE TABLE runs (
  id          TEXT PRIMARY KEY,
  agent       TEXT NOT NULL,
  principal   TEXT NOT NULL,
  prompt      BYTEA NOT NULL,
  state       TEXT NOT NULL,
  waiting_for TEXT NOT NULL,
  reason      TEXT NOT NULL,
  answer      BYTEA NOT NULL,
  turns       BIGINT NOT NULL,
  fence       BIGINT NOT NULL,
  owner       TEXT NOT NULL,
  lease_until BIGINT NOT NULL,
  created_at  BIGINT NOT NULL,
  ended_at    BIGINT NOT NULL,
  spent       BIGINT NOT NULL,
  cancel      BIGINT NOT NULL
);
CREATE INDEX runs_due ON runs (state, lease_until);
CREATE TABLE run_events (
  run  TEXT NOT NULL,
  seq  BIGINT NOT NULL,
  at   BIGINT NOT NULL,
  turn BIGINT NOT NULL,
  kind TEXT NOT NULL,
  span TEXT NOT NULL,
  data BYTEA NOT NULL,
  PRIMARY KEY (run, seq)
);
CREATE TABLE messages (
  run  TEXT NOT NULL,
  seq  BIGINT NOT NULL,
  body BYTEA NOT NULL,
  PRIMARY KEY (run, seq)
);
CREATE TABLE calls (
  id          TEXT PRIMARY KEY,
  run         TEXT NOT NULL,
  agent       TEXT NOT NULL,
  principal   TEXT NOT NULL,
  connection  TEXT NOT NULL,
  version     BIGINT NOT NULL,
  server      TEXT NOT NULL,
  tool        TEXT NOT NULL,
  alias       TEXT NOT NULL,
  tool_use    TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  class       TEXT NOT NULL,
  args_digest TEXT NOT NULL,
  state       TEXT NOT NULL,
  reason      TEXT NOT NULL,
  attempts    BIGINT NOT NULL,
  planned_at  BIGINT NOT NULL,
  done_at     BIGINT NOT NULL,
  bytes       BIGINT NOT NULL,
  replaces    TEXT NOT NULL,
  fence       BIGINT NOT NULL,
  resolved_by TEXT NOT NULL,
  note        TEXT NOT NULL
);
CREATE INDEX calls_run ON calls (run);
CREATE INDEX calls_open ON calls (state) WHERE state IN ('dispatched', 'unknown');
CREATE TABLE attempts (
  call    TEXT NOT NULL,
  n       BIGINT NOT NULL,
  at      BIGINT NOT NULL,
  done_at BIGINT NOT NULL,
  outcome TEXT NOT NULL,
  detail  TEXT NOT NULL,
  PRIMARY KEY (call, n)
);
CREATE TABLE results (
  id       TEXT PRIMARY KEY,
  call     TEXT NOT NULL UNIQUE,
  run      TEXT NOT NULL,
  is_error BIGINT NOT NULL,
  body     BYTEA NOT NULL,
  whole    BYTEA NOT NULL,
  at       BIGINT NOT NULL
);
CREATE INDEX results_run ON results (run);
CREATE TABLE audit (
  id       TEXT PRIMARY KEY,
  at       BIGINT NOT NULL,
  who      TEXT NOT NULL,
  action   TEXT NOT NULL,
  what     TEXT NOT NULL,
  decision TEXT NOT NULL,
  digest   TEXT NOT NULL
);
-- +goose Down
DROP TABLE audit; DROP TABLE results; DROP TABLE attempts; DROP TABLE calls; DROP TABLE messages;
DROP TABLE run_events; DROP TABLE runs; DROP TABLE definitions; DROP TABLE catalogs; DROP TABLE connections; DROP TABLE meta;
