-- +goose Up
CREATE TABLE chat_work (
  id          TEXT PRIMARY KEY,
  kind        TEXT NOT NULL,
  body        BLOB NOT NULL,
  by          TEXT NOT NULL,
  channel     TEXT NOT NULL,
  run         TEXT NOT NULL,
  message     TEXT NOT NULL,
  attempts    BIGINT NOT NULL,
  owner       TEXT NOT NULL,
  at          BIGINT NOT NULL,
  state       TEXT NOT NULL,
  lease_until BIGINT NOT NULL
);
CREATE INDEX chat_work_open ON chat_work (lease_until) WHERE state = 'open';
CREATE INDEX chat_work_message ON chat_work (message) WHERE message <> '';
CREATE INDEX chat_work_run ON chat_work (run) WHERE run <> '';
CREATE TABLE chat_cards (
  hash    TEXT PRIMARY KEY,
  subject TEXT NOT NULL,
  asked   TEXT NOT NULL,
  channel TEXT NOT NULL,
  message TEXT NOT NULL,
  state   TEXT NOT NULL,
  at      BIGINT NOT NULL,
  UNIQUE (subject, asked)
);
CREATE INDEX chat_cards_open ON chat_cards (at) WHERE state = 'open';
-- +goose Down
DROP TABLE chat_cards;
DROP TABLE chat_work;
