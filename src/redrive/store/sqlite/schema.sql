-- redrive's tables on SQLite, storage format 1. All names start with redrive_.
-- What holds for several rows together (counts, journal) is written by triggers, so that no code path can forget it.

CREATE TABLE redrive_meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;

CREATE TABLE redrive_logs (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE redrive_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,     -- never reused; the order of commits
    log      INTEGER NOT NULL,
    id       TEXT NOT NULL,
    type     TEXT NOT NULL,
    key      TEXT,
    version  INTEGER,                               -- 1, 2, 3 … within (log, key); NULL without a key
    schema   INTEGER NOT NULL,
    time_us  INTEGER NOT NULL,
    headers  BLOB,
    data     BLOB NOT NULL
);
CREATE UNIQUE INDEX redrive_events_id ON redrive_events (log, id);
CREATE UNIQUE INDEX redrive_events_key ON redrive_events (log, key, version) WHERE key IS NOT NULL;
CREATE INDEX redrive_events_log ON redrive_events (log);    -- SQLite appends the rowid: (log, position)

-- What lies in each stretch of 2048 positions, for listings. An index on types and times cost a fifth of an append.
CREATE TABLE redrive_spans (
    span INTEGER NOT NULL,                          -- position / 2048
    log  INTEGER NOT NULL,
    type TEXT NOT NULL,
    low  INTEGER NOT NULL,                          -- the first and the last time_us of the whole span
    high INTEGER NOT NULL,
    PRIMARY KEY (span, log, type)
) WITHOUT ROWID;

CREATE TABLE redrive_subscriptions (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL,                       -- projection, handler
    source     TEXT NOT NULL,
    ordering   TEXT NOT NULL,                       -- key, none, total
    created_at REAL NOT NULL
);

-- One hot, small row per partition of a subscription: the fence, the progress and the counters of the ledger.
-- What holds for the subscription as a whole is everywhere below the lowest position, and marked above it.
CREATE TABLE redrive_progress (
    member         INTEGER PRIMARY KEY,             -- subscription + partition * 2^32
    subscription   INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    anchor         TEXT,                            -- id of the event at position, or the last one before it
    epoch          INTEGER NOT NULL DEFAULT 0,      -- only ever grows
    parked_version INTEGER NOT NULL DEFAULT 0,      -- bumped by everybody but the owner
    applied        INTEGER NOT NULL DEFAULT 0,      -- settled at intake, without ever having been a letter
    ignored        INTEGER NOT NULL DEFAULT 0,
    started_from   INTEGER NOT NULL DEFAULT 0,      -- the ledger begins above this position
    quiet_until    INTEGER NOT NULL DEFAULT 0,      -- a rebuild suppresses emissions at or below it
    paused         INTEGER NOT NULL DEFAULT 0,
    halted         TEXT,
    owner          TEXT,
    lease_until    REAL NOT NULL DEFAULT 0,
    lease_set_at   REAL NOT NULL DEFAULT 0,
    taken_at       REAL,                            -- when the owner became it
    unclean        INTEGER NOT NULL DEFAULT 0,
    boot           TEXT,
    settled_at     REAL,
    last_type      TEXT,
    last_time_us   INTEGER
);
CREATE INDEX redrive_progress_subscription ON redrive_progress (subscription);

-- What is settled above the prefix. A thousand keys at work settle far out of order: a row for each position cost
-- as much as calling the function, so 512 neighbours share one.
CREATE TABLE redrive_done_chunks (
    member       INTEGER NOT NULL,
    chunk        INTEGER NOT NULL,                  -- position / 512
    marks        TEXT NOT NULL,                     -- 512 characters, one for each position: 1 is settled, 0 is not
    PRIMARY KEY (member, chunk)
) WITHOUT ROWID;

CREATE VIEW redrive_done AS                         -- blocks of 64 and of 8 without a mark are passed by
    WITH octal(n) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7))
    SELECT member & 4294967295 AS subscription, member, chunk * 512 + a.n * 64 + b.n * 8 + c.n AS position
    FROM redrive_done_chunks CROSS JOIN octal a CROSS JOIN octal b CROSS JOIN octal c
    WHERE instr(substr(marks, a.n * 64 + 1, 64), '1') AND instr(substr(marks, a.n * 64 + b.n * 8 + 1, 8), '1')
      AND substr(marks, a.n * 64 + b.n * 8 + c.n + 1, 1) = '1';

CREATE TABLE redrive_filters (
    subscription  INTEGER NOT NULL,
    from_position INTEGER NOT NULL,                 -- holds for positions above it
    types         TEXT NOT NULL,                    -- JSON list; empty = all
    PRIMARY KEY (subscription, from_position)
) WITHOUT ROWID;

CREATE TABLE redrive_ranges (
    subscription  INTEGER NOT NULL,
    from_position INTEGER NOT NULL,                 -- exclusive
    to_position   INTEGER NOT NULL,                 -- inclusive
    discarded     INTEGER NOT NULL,                 -- events the filter asked for in it that had no fate yet
    audit         INTEGER NOT NULL,
    PRIMARY KEY (subscription, from_position)
) WITHOUT ROWID;

CREATE TABLE redrive_tables (
    name         TEXT PRIMARY KEY,
    subscription INTEGER NOT NULL,
    columns      TEXT                               -- NULL: the user creates it
) WITHOUT ROWID;

CREATE TABLE redrive_letters (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription    INTEGER NOT NULL,
    position        INTEGER NOT NULL,
    lane            TEXT,                           -- NULL: a lane of its own
    event_id        TEXT NOT NULL,
    type            TEXT NOT NULL,
    key             TEXT,
    state           TEXT NOT NULL CHECK (state IN ('retrying', 'dead', 'applied', 'discarded', 'superseded')),
    reason          TEXT NOT NULL,
    rev             INTEGER NOT NULL DEFAULT 0,
    attempts        INTEGER NOT NULL,
    replaying       INTEGER NOT NULL DEFAULT 0,     -- the next attempt is a replay: one, then dead again
    due_at          REAL NOT NULL,
    due_set_at      REAL NOT NULL,
    delay           REAL NOT NULL,
    parked_at       REAL NOT NULL,
    first_failed_at REAL,
    last_failed_at  REAL,
    error_type      TEXT NOT NULL DEFAULT '',
    error_message   TEXT NOT NULL DEFAULT '',
    fingerprint     TEXT NOT NULL DEFAULT '',
    edits           INTEGER NOT NULL DEFAULT 0,
    touched_at      REAL NOT NULL,
    resolved_by     TEXT,
    operation       INTEGER,                        -- the bulk operation that replayed it last
    dependency      TEXT,                           -- which is to blame for the last failure: a breaker's name; NULL: none
    auto_replays    INTEGER NOT NULL DEFAULT 0      -- how often it was replayed automatically
);
CREATE UNIQUE INDEX redrive_letters_position ON redrive_letters (subscription, position) WHERE state <> 'superseded';
CREATE INDEX redrive_letters_open ON redrive_letters (subscription, lane, position) WHERE state IN ('retrying', 'dead');
CREATE INDEX redrive_letters_state ON redrive_letters (state, subscription, id);
CREATE INDEX redrive_letters_page ON redrive_letters (state, id);
CREATE INDEX redrive_letters_event ON redrive_letters (event_id);
CREATE INDEX redrive_letters_cause ON redrive_letters (fingerprint, subscription, id) WHERE state = 'dead';
CREATE INDEX redrive_letters_key ON redrive_letters (key, id) WHERE state = 'dead';
CREATE INDEX redrive_letters_time ON redrive_letters (coalesce(last_failed_at, parked_at)) WHERE state = 'dead';
CREATE INDEX redrive_letters_healing ON redrive_letters (subscription, position)
WHERE state = 'dead' AND reason IN ('attempts_exhausted', 'breaker_open', 'retry_limited');

CREATE TABLE redrive_sieve (                        -- pieces of what dead letters say, see store/sieve.py
    letters INTEGER PRIMARY KEY,                    -- the number of a letter / 128
    bits    BLOB NOT NULL
);

CREATE TABLE redrive_attempts (                     -- append-only history of each letter
    id            INTEGER PRIMARY KEY,
    letter        INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    at            REAL NOT NULL,
    outcome       TEXT NOT NULL,
    error_type    TEXT NOT NULL DEFAULT '',
    error_message TEXT NOT NULL DEFAULT '',
    traceback     TEXT NOT NULL DEFAULT '',
    fingerprint   TEXT NOT NULL DEFAULT '',
    worker        TEXT NOT NULL DEFAULT ''
);
CREATE INDEX redrive_attempts_letter ON redrive_attempts (letter);

CREATE TABLE redrive_edits (                        -- every revision of a letter's payload; the log keeps the original
    subscription INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    rev          INTEGER NOT NULL,
    data         BLOB NOT NULL,
    audit        INTEGER NOT NULL,
    PRIMARY KEY (subscription, position, rev)
) WITHOUT ROWID;

CREATE TABLE redrive_journal (                      -- append-only: each change of a letter's state or data
    seq          INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused: mirrors follow it, and its oldest rows are pruned
    letter       INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    state        TEXT NOT NULL,
    rev          INTEGER NOT NULL,
    at           REAL NOT NULL
);
CREATE INDEX redrive_journal_letter ON redrive_journal (letter);

CREATE TABLE redrive_letter_counts (
    subscription INTEGER NOT NULL,
    state        TEXT NOT NULL,
    reason       TEXT NOT NULL,
    type         TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    n            INTEGER NOT NULL,
    PRIMARY KEY (subscription, state, reason, type, fingerprint)
) WITHOUT ROWID;

CREATE TRIGGER redrive_letter_born AFTER INSERT ON redrive_letters BEGIN
    INSERT INTO redrive_journal (letter, subscription, position, state, rev, at)
    VALUES (NEW.id, NEW.subscription, NEW.position, NEW.state, NEW.rev, NEW.touched_at);
    INSERT INTO redrive_letter_counts VALUES (NEW.subscription, NEW.state, NEW.reason, NEW.type, NEW.fingerprint, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER redrive_letter_moved AFTER UPDATE OF state, reason, fingerprint ON redrive_letters
WHEN OLD.state <> NEW.state OR OLD.reason <> NEW.reason OR OLD.fingerprint <> NEW.fingerprint BEGIN
    INSERT INTO redrive_journal (letter, subscription, position, state, rev, at)
    SELECT NEW.id, NEW.subscription, NEW.position, NEW.state, NEW.rev, NEW.touched_at WHERE OLD.state <> NEW.state;
    UPDATE redrive_letter_counts SET n = n - 1
    WHERE subscription = OLD.subscription AND state = OLD.state AND reason = OLD.reason AND type = OLD.type
      AND fingerprint = OLD.fingerprint;
    DELETE FROM redrive_letter_counts
    WHERE subscription = OLD.subscription AND state = OLD.state AND reason = OLD.reason AND type = OLD.type
      AND fingerprint = OLD.fingerprint AND n = 0;
    INSERT INTO redrive_letter_counts VALUES (NEW.subscription, NEW.state, NEW.reason, NEW.type, NEW.fingerprint, 1)
    ON CONFLICT DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER redrive_letter_edited AFTER UPDATE OF edits ON redrive_letters
WHEN OLD.edits <> NEW.edits AND OLD.state = NEW.state BEGIN
    INSERT INTO redrive_journal (letter, subscription, position, state, rev, at)
    VALUES (NEW.id, NEW.subscription, NEW.position, NEW.state, NEW.rev, NEW.touched_at);
END;

CREATE TABLE redrive_workers (                      -- processes that run subscriptions, or did a moment ago
    owner      TEXT PRIMARY KEY,
    version    TEXT NOT NULL,
    started_at REAL NOT NULL,
    seen_at    REAL NOT NULL,
    runs       TEXT NOT NULL                        -- JSON: subscriptions, and in how many partitions
) WITHOUT ROWID;

-- How many letters are open in each lane, so that the fullest are listed without counting. `oldest` is the position of
-- its head, to sort by: who is to run is always computed from the letters.
CREATE TABLE redrive_lanes (
    subscription INTEGER NOT NULL,
    lane         TEXT NOT NULL,
    n            INTEGER NOT NULL,
    oldest       INTEGER NOT NULL,
    PRIMARY KEY (subscription, lane)
) WITHOUT ROWID;
CREATE INDEX redrive_lanes_size ON redrive_lanes (subscription, n DESC, oldest);

CREATE TRIGGER redrive_lane_begun AFTER INSERT ON redrive_letters
WHEN NEW.lane IS NOT NULL AND NEW.state IN ('retrying', 'dead') BEGIN
    INSERT INTO redrive_lanes VALUES (NEW.subscription, NEW.lane, 1, NEW.position)
    ON CONFLICT DO UPDATE SET n = n + 1, oldest = min(oldest, excluded.oldest);
END;

CREATE TRIGGER redrive_lane_left AFTER UPDATE OF state, lane ON redrive_letters
WHEN OLD.lane IS NOT NULL AND OLD.state IN ('retrying', 'dead')
  AND (NEW.state NOT IN ('retrying', 'dead') OR NEW.lane IS NOT OLD.lane) BEGIN
    DELETE FROM redrive_lanes WHERE subscription = OLD.subscription AND lane = OLD.lane AND n = 1;
    UPDATE redrive_lanes SET n = n - 1, oldest =
        CASE WHEN oldest < OLD.position THEN oldest ELSE coalesce((SELECT min(position) FROM redrive_letters
             WHERE subscription = OLD.subscription AND lane = OLD.lane AND state IN ('retrying', 'dead')), oldest) END
    WHERE subscription = OLD.subscription AND lane = OLD.lane;
END;

CREATE TRIGGER redrive_lane_joined AFTER UPDATE OF state, lane ON redrive_letters
WHEN NEW.lane IS NOT NULL AND NEW.state IN ('retrying', 'dead')
  AND (OLD.state NOT IN ('retrying', 'dead') OR OLD.lane IS NOT NEW.lane) BEGIN
    INSERT INTO redrive_lanes VALUES (NEW.subscription, NEW.lane, 1, NEW.position)
    ON CONFLICT DO UPDATE SET n = n + 1, oldest = min(oldest, excluded.oldest);
END;

CREATE TABLE redrive_inflight (                     -- events that run alone after an unclean start
    member       INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    running      INTEGER NOT NULL,
    charges      INTEGER NOT NULL,
    boot         TEXT,
    PRIMARY KEY (member, position)
) WITHOUT ROWID;

CREATE TABLE redrive_state (
    subscription INTEGER NOT NULL,
    key          TEXT NOT NULL,
    version      INTEGER NOT NULL,
    data         BLOB NOT NULL,
    PRIMARY KEY (subscription, key)
) WITHOUT ROWID;

-- A state may be empty again, but the subscription has counted: going back would count some events twice.
CREATE TRIGGER redrive_state_born AFTER INSERT ON redrive_state
WHEN NOT EXISTS (SELECT 1 FROM redrive_meta WHERE name = 'state ' || NEW.subscription) BEGIN
    INSERT INTO redrive_meta VALUES ('state ' || NEW.subscription, 1);
END;

CREATE TABLE redrive_operations (                   -- what an operator asked for many letters at once
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    action   TEXT NOT NULL,
    who      TEXT NOT NULL,
    reason   TEXT NOT NULL,
    at       REAL NOT NULL,
    selected INTEGER NOT NULL,
    rate     REAL,                                  -- replays per second; NULL: as fast as may be
    ended_at REAL,                                  -- when everything selected had been asked for, or it was cancelled
    cancelled INTEGER NOT NULL DEFAULT 0,
    applied  INTEGER NOT NULL DEFAULT 0,            -- its receipt, counted by triggers; the rest is not asked for yet
    failed   INTEGER NOT NULL DEFAULT 0,
    skipped  INTEGER NOT NULL DEFAULT 0,
    waiting  INTEGER NOT NULL DEFAULT 0             -- asked for, and not run yet
);

CREATE TABLE redrive_operation_letters (            -- its selection, frozen; selected = applied + failed + skipped
    operation INTEGER NOT NULL,
    letter    INTEGER NOT NULL,
    rev       INTEGER NOT NULL,                     -- as it was selected
    asked     INTEGER NOT NULL DEFAULT 0,
    result    TEXT CHECK (result IN ('applied', 'failed', 'skipped')),
    why       TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (operation, letter)
) WITHOUT ROWID;
CREATE INDEX redrive_operation_bad ON redrive_operation_letters (operation, result, letter)
WHERE result IN ('failed', 'skipped');

CREATE TRIGGER redrive_operation_begun AFTER INSERT ON redrive_operation_letters
WHEN NEW.asked = 1 OR NEW.result IS NOT NULL BEGIN
    UPDATE redrive_operations
    SET applied = applied + (NEW.result IS 'applied'), failed = failed + (NEW.result IS 'failed'),
        skipped = skipped + (NEW.result IS 'skipped'), waiting = waiting + (NEW.result IS NULL)
    WHERE id = NEW.operation;
END;

CREATE TRIGGER redrive_operation_moved AFTER UPDATE OF asked, result ON redrive_operation_letters BEGIN
    UPDATE redrive_operations
    SET applied = applied + (NEW.result IS 'applied') - (OLD.result IS 'applied'),
        failed = failed + (NEW.result IS 'failed') - (OLD.result IS 'failed'),
        skipped = skipped + (NEW.result IS 'skipped') - (OLD.result IS 'skipped'),
        waiting = waiting + (NEW.asked = 1 AND NEW.result IS NULL) - (OLD.asked = 1 AND OLD.result IS NULL)
    WHERE id = NEW.operation;
END;

CREATE TRIGGER redrive_operation_result AFTER UPDATE OF state ON redrive_letters
WHEN OLD.operation IS NOT NULL AND OLD.state = 'retrying' AND NEW.state <> 'retrying' BEGIN
    UPDATE redrive_operation_letters
    SET result = CASE WHEN NEW.state = 'applied' OR NEW.resolved_by IN ('replay', 'ignore verdict') THEN 'applied'
                      WHEN NEW.state = 'dead' THEN 'failed' ELSE 'skipped' END,
        why = CASE NEW.state WHEN 'applied' THEN '' WHEN 'dead' THEN NEW.error_type ELSE 'it is ' || NEW.state END
    WHERE operation = OLD.operation AND letter = NEW.id AND result IS NULL;
END;

CREATE TABLE redrive_notes (                        -- what people know of a cause
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint TEXT NOT NULL,
    at          REAL NOT NULL,
    who         TEXT NOT NULL,
    text        TEXT NOT NULL,
    resolved    INTEGER NOT NULL                    -- 1: fixed; 0: a note; what dies later of a fixed cause has regressed
);
CREATE INDEX redrive_notes_fingerprint ON redrive_notes (fingerprint, id);

CREATE TABLE redrive_controls (                     -- what an operator asks the owner to do
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription INTEGER NOT NULL,
    verb         TEXT NOT NULL,
    letter       INTEGER NOT NULL,
    rev          INTEGER NOT NULL,
    who          TEXT NOT NULL,
    reason       TEXT NOT NULL,
    at           REAL NOT NULL
);

CREATE TABLE redrive_audit (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    at           REAL NOT NULL,
    who          TEXT NOT NULL,
    action       TEXT NOT NULL,
    subscription TEXT NOT NULL,
    target       TEXT NOT NULL,
    reason       TEXT NOT NULL,
    details      TEXT NOT NULL,
    hash         TEXT NOT NULL                      -- of this row and the hash before it
);

CREATE TABLE redrive_breakers (                     -- of dependencies, shared by all who name them
    name      TEXT PRIMARY KEY,                     -- NAME/KEY where each key has one; NAME/ says that keys have
    state     TEXT NOT NULL,                        -- closed, open, probing
    failures  INTEGER NOT NULL,                     -- in a row, while closed
    successes INTEGER NOT NULL,                     -- of probes, while probing
    since     REAL NOT NULL,
    until     REAL,                                 -- open: when it may be probed; NULL: when somebody closes it
    recoveries INTEGER NOT NULL                     -- how often it closed again
) WITHOUT ROWID;

CREATE TABLE redrive_probes (                       -- calls let through a probing breaker, by who made them
    breaker TEXT NOT NULL,
    member  INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,                       -- of the owner then: the probes of one that was fenced count no more
    n       INTEGER NOT NULL,
    until   REAL NOT NULL,                          -- nor do those of one whom nobody succeeds
    PRIMARY KEY (breaker, member)
) WITHOUT ROWID;

CREATE TABLE redrive_buckets (                      -- limits that workers share
    name    TEXT PRIMARY KEY,
    full_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE redrive_scheduled (                    -- events that are appended when they are due, and then leave
    seq     INTEGER PRIMARY KEY,                    -- of two that are due at the same time, the first comes first
    log     INTEGER NOT NULL,
    id      TEXT NOT NULL,
    type    TEXT NOT NULL,
    key     TEXT,
    schema  INTEGER NOT NULL,
    time_us INTEGER,                                -- what the producer says; NULL: the time at which it is due
    headers BLOB,
    data    BLOB NOT NULL,
    due_at  REAL NOT NULL,
    set_at  REAL NOT NULL,
    delay   REAL                                    -- NULL: at that very time, whatever the clock did meanwhile
);
CREATE UNIQUE INDEX redrive_scheduled_id ON redrive_scheduled (log, id);
CREATE INDEX redrive_scheduled_due ON redrive_scheduled (due_at, seq);
CREATE INDEX redrive_scheduled_set ON redrive_scheduled (set_at) WHERE delay IS NOT NULL;

CREATE TABLE redrive_landed (                       -- how far the partitions of a broker have landed in their log
    subscription INTEGER NOT NULL,
    partition    INTEGER NOT NULL,
    position     TEXT NOT NULL,                     -- in the broker's own words
    PRIMARY KEY (subscription, partition)
) WITHOUT ROWID;
