-- +goose Up
CREATE TABLE egress_requests (
  id          TEXT PRIMARY KEY,
  at          BIGINT NOT NULL,
  done_at     BIGINT NOT NULL,
  agent       TEXT NOT NULL,
  team        TEXT NOT NULL,
  principal   TEXT NOT NULL,
  destination TEXT NOT NULL,
  host        TEXT NOT NULL,
  port        BIGINT NOT NULL,
  method      TEXT NOT NULL,
  path        TEXT NOT NULL,
  state       TEXT NOT NULL,
  status      BIGINT NOT NULL,
  injected    BIGINT NOT NULL,
  sent        BIGINT NOT NULL,
  received    BIGINT NOT NULL,
  reason      TEXT NOT NULL,
  owner       TEXT NOT NULL
);
CREATE INDEX egress_requests_open ON egress_requests (at) WHERE state = 'dispatched';
CREATE TABLE authorities (
  name TEXT PRIMARY KEY,
  cert TEXT NOT NULL,
  blob BLOB NOT NULL,
  at   BIGINT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('min_binary', '8') ON CONFLICT (key) DO UPDATE SET value = excluded.value;
-- +goose Down
UPDATE meta SET value = '7' WHERE key = 'min_binary';
DROP TABLE authorities; DROP TABLE egress_requests;
