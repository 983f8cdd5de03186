-- +goose Up
DROP INDEX calls_run;
CREATE INDEX calls_run ON calls (run) WHERE fence > 0;
CREATE INDEX calls_waiting ON calls (planned_at) WHERE state = 'awaiting_input';
CREATE TABLE bare_names (
  agent      TEXT NOT NULL,
  name       TEXT NOT NULL,
  connection TEXT NOT NULL,
  tool       TEXT NOT NULL,
  at         BIGINT NOT NULL,
  PRIMARY KEY (agent, name)
);
CREATE TABLE session_revocations (
  session TEXT NOT NULL PRIMARY KEY,
  until   BIGINT NOT NULL
);
CREATE TABLE replicas (
  name      TEXT NOT NULL PRIMARY KEY,
  advertise TEXT NOT NULL,
  until     BIGINT NOT NULL
);
