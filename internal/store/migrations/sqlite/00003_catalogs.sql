-- +goose Up
ALTER TABLE connections ADD COLUMN prefs TEXT NOT NULL DEFAULT '{}';
CREATE TABLE reviews (
  connection  TEXT NOT NULL,
  name        TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  class       TEXT NOT NULL,
  reviewed_by TEXT NOT NULL,
  reviewed_at BIGINT NOT NULL,
  PRIMARY KEY (connection, name)
);
ALTER TABLE definitions DROP COLUMN class;
-- +goose Down
ALTER TABLE definitions ADD COLUMN class TEXT NOT NULL DEFAULT 'effect';
DROP TABLE reviews;
