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
-- +goose Down
DROP TABLE reviews;
