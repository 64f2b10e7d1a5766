-- Storage format 3. Where the events of a key lie is written a span at a time, see redrive_spans: of what a hundred
-- appends wrote, pages of an index on keys and versions were four in five, each for one of them.

CREATE TABLE redrive_keys (
    log      INTEGER NOT NULL,
    key      TEXT NOT NULL,
    version  INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (log, key, version)
) WITHOUT ROWID;

CREATE TABLE redrive_keyed (                         -- one row
    below INTEGER NOT NULL                          -- all events below this position that have a version are in redrive_keys
);

CREATE VIEW redrive_tail AS                         -- the others
    SELECT position, log, id, type, key, version, schema, time_us, headers, data FROM redrive_events NOT INDEXED
    WHERE position >= (SELECT below FROM redrive_keyed);

INSERT INTO redrive_keyed SELECT coalesce(max(position) + 1, 0) FROM redrive_events;
INSERT INTO redrive_keys SELECT log, key, version, position FROM redrive_events WHERE version IS NOT NULL
    ORDER BY log, key, version;
DROP INDEX redrive_events_key;

CREATE TRIGGER redrive_events_gone AFTER DELETE ON redrive_events WHEN OLD.version IS NOT NULL
BEGIN
    DELETE FROM redrive_keys WHERE log = OLD.log AND key = OLD.key AND version = OLD.version;
END;
