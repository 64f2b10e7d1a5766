-- Storage format 2. What a broker gave has a key and no version: nobody asks for one where only the broker is written to,
-- and of all that a landing wrote, nine pages in ten were those of the index on keys and versions.

ALTER TABLE redrive_logs ADD COLUMN landed_from INTEGER;    -- below this position every event with a key has a version
DROP INDEX redrive_events_key;
CREATE UNIQUE INDEX redrive_events_key ON redrive_events (log, key, version) WHERE version IS NOT NULL;
