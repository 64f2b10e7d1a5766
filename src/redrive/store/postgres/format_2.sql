-- Storage format 2: as on SQLite. What a broker gave has a key and no version, and is in no index on them.

ALTER TABLE redrive.logs ADD COLUMN landed_from bigint;     -- below this position every event with a key has a version
DROP INDEX redrive.events_key;
CREATE UNIQUE INDEX events_key ON redrive.events (log, key, version) WHERE version IS NOT NULL;
