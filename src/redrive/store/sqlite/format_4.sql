-- Storage format 4. Declarations are compared when a lease is taken; a rebuild reserves its subscription; lost connections
-- are charged; causes are counted; letters that change are listed; keys are held.

-- Declarations and reservations.

ALTER TABLE redrive_subscriptions ADD COLUMN version TEXT;            -- of the function, as declared last; NULL: none
ALTER TABLE redrive_subscriptions ADD COLUMN key_function TEXT;       -- the name of what gives the key; NULL: unknown
ALTER TABLE redrive_subscriptions ADD COLUMN declared_tables TEXT;    -- JSON list of names; NULL: unknown
ALTER TABLE redrive_subscriptions ADD COLUMN declared_by_operator INTEGER NOT NULL DEFAULT 0;
ALTER TABLE redrive_subscriptions ADD COLUMN reserved_by TEXT;        -- the process that rebuilds it
ALTER TABLE redrive_subscriptions ADD COLUMN reserved_until REAL NOT NULL DEFAULT 0;
ALTER TABLE redrive_workers ADD COLUMN waits TEXT NOT NULL DEFAULT '{}';    -- JSON: subscriptions it may not run, and why

-- Lost connections.

ALTER TABLE redrive_inflight ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;  -- so many of the charges are for lost connections

-- Counters of causes: how many lanes have a dead head with a fingerprint, and how many letters wait behind these heads. A
-- dead letter in a lane of its own is one lane. Kept by triggers, as the other counters are.

ALTER TABLE redrive_lanes ADD COLUMN cause TEXT;    -- the fingerprint of its head, if that is dead
ALTER TABLE redrive_letter_counts ADD COLUMN last_at REAL NOT NULL DEFAULT 0;   -- when one of these letters failed last

CREATE TABLE redrive_causes (
    subscription INTEGER NOT NULL,
    fingerprint  TEXT NOT NULL,
    lanes        INTEGER NOT NULL,
    waiting      INTEGER NOT NULL,
    PRIMARY KEY (subscription, fingerprint)
) WITHOUT ROWID;

UPDATE redrive_lanes SET cause = (SELECT l.fingerprint FROM redrive_letters l WHERE l.subscription = redrive_lanes.subscription
    AND l.position = redrive_lanes.oldest AND l.state = 'dead' AND l.state <> 'superseded');
INSERT INTO redrive_causes
SELECT subscription, fingerprint, sum(lanes), sum(waiting) FROM
    (SELECT subscription, cause AS fingerprint, 1 AS lanes, n - 1 AS waiting FROM redrive_lanes WHERE cause IS NOT NULL
     UNION ALL SELECT subscription, fingerprint, 1, 0 FROM redrive_letters WHERE state = 'dead' AND lane IS NULL)
GROUP BY subscription, fingerprint;
UPDATE redrive_letter_counts SET last_at = coalesce((SELECT max(l.last_failed_at) FROM redrive_letters l
    WHERE l.state = 'dead' AND l.fingerprint = redrive_letter_counts.fingerprint
      AND l.subscription = redrive_letter_counts.subscription AND l.reason = redrive_letter_counts.reason
      AND l.type = redrive_letter_counts.type), 0) WHERE state = 'dead';

DROP TRIGGER redrive_letter_born;
CREATE TRIGGER redrive_letter_born AFTER INSERT ON redrive_letters BEGIN
    INSERT INTO redrive_journal (letter, subscription, position, state, rev, at)
    VALUES (NEW.id, NEW.subscription, NEW.position, NEW.state, NEW.rev, NEW.touched_at);
    INSERT INTO redrive_letter_counts
    VALUES (NEW.subscription, NEW.state, NEW.reason, NEW.type, NEW.fingerprint, 1, coalesce(NEW.last_failed_at, 0))
    ON CONFLICT DO UPDATE SET n = n + 1, last_at = max(last_at, excluded.last_at);
END;

DROP TRIGGER redrive_letter_moved;
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
    INSERT INTO redrive_letter_counts
    VALUES (NEW.subscription, NEW.state, NEW.reason, NEW.type, NEW.fingerprint, 1, coalesce(NEW.last_failed_at, 0))
    ON CONFLICT DO UPDATE SET n = n + 1, last_at = max(last_at, excluded.last_at);
END;

DROP TRIGGER redrive_lane_begun;
CREATE TRIGGER redrive_lane_begun AFTER INSERT ON redrive_letters
WHEN NEW.lane IS NOT NULL AND NEW.state IN ('retrying', 'dead') BEGIN
    INSERT INTO redrive_lanes
    VALUES (NEW.subscription, NEW.lane, 1, NEW.position, CASE NEW.state WHEN 'dead' THEN NEW.fingerprint END)
    ON CONFLICT DO UPDATE SET n = n + 1, cause = CASE WHEN excluded.oldest < oldest THEN excluded.cause ELSE cause END,
       oldest = min(oldest, excluded.oldest);
END;

DROP TRIGGER redrive_lane_left;
CREATE TRIGGER redrive_lane_left AFTER UPDATE OF state, lane ON redrive_letters
WHEN OLD.lane IS NOT NULL AND OLD.state IN ('retrying', 'dead')
  AND (NEW.state NOT IN ('retrying', 'dead') OR NEW.lane IS NOT OLD.lane) BEGIN
    DELETE FROM redrive_lanes WHERE subscription = OLD.subscription AND lane = OLD.lane AND n = 1;
    UPDATE redrive_lanes SET n = n - 1, oldest =
        CASE WHEN oldest < OLD.position THEN oldest ELSE coalesce((SELECT min(position) FROM redrive_letters
             WHERE subscription = OLD.subscription AND lane = OLD.lane AND state IN ('retrying', 'dead')), oldest) END,
        cause = CASE WHEN oldest < OLD.position THEN cause ELSE (SELECT CASE state WHEN 'dead' THEN fingerprint END
             FROM redrive_letters WHERE subscription = OLD.subscription AND lane = OLD.lane
             AND state IN ('retrying', 'dead') ORDER BY position LIMIT 1) END
    WHERE subscription = OLD.subscription AND lane = OLD.lane;
END;

DROP TRIGGER redrive_lane_joined;
CREATE TRIGGER redrive_lane_joined AFTER UPDATE OF state, lane ON redrive_letters
WHEN NEW.lane IS NOT NULL AND NEW.state IN ('retrying', 'dead')
  AND (OLD.state NOT IN ('retrying', 'dead') OR OLD.lane IS NOT NEW.lane) BEGIN
    INSERT INTO redrive_lanes
    VALUES (NEW.subscription, NEW.lane, 1, NEW.position, CASE NEW.state WHEN 'dead' THEN NEW.fingerprint END)
    ON CONFLICT DO UPDATE SET n = n + 1, cause = CASE WHEN excluded.oldest < oldest THEN excluded.cause ELSE cause END,
       oldest = min(oldest, excluded.oldest);
END;

CREATE TRIGGER redrive_lane_head_changed AFTER UPDATE OF state, fingerprint ON redrive_letters
WHEN NEW.lane IS NOT NULL AND NEW.lane IS OLD.lane
  AND OLD.state IN ('retrying', 'dead') AND NEW.state IN ('retrying', 'dead')
  AND (OLD.state <> NEW.state OR (NEW.state = 'dead' AND OLD.fingerprint <> NEW.fingerprint)) BEGIN
    UPDATE redrive_lanes SET cause = CASE NEW.state WHEN 'dead' THEN NEW.fingerprint END
    WHERE subscription = NEW.subscription AND lane = NEW.lane AND oldest = NEW.position;
END;

CREATE TRIGGER redrive_cause_begun AFTER INSERT ON redrive_lanes WHEN NEW.cause IS NOT NULL BEGIN
    INSERT INTO redrive_causes VALUES (NEW.subscription, NEW.cause, 1, NEW.n - 1)
    ON CONFLICT DO UPDATE SET lanes = lanes + 1, waiting = waiting + excluded.waiting;
END;

CREATE TRIGGER redrive_cause_grown AFTER UPDATE OF n ON redrive_lanes
WHEN NEW.cause IS NOT NULL AND NEW.cause IS OLD.cause AND NEW.n <> OLD.n BEGIN
    UPDATE redrive_causes SET waiting = waiting + NEW.n - OLD.n
    WHERE subscription = NEW.subscription AND fingerprint = NEW.cause;
END;

CREATE TRIGGER redrive_cause_left AFTER UPDATE OF cause ON redrive_lanes
WHEN OLD.cause IS NOT NULL AND NEW.cause IS NOT OLD.cause BEGIN
    UPDATE redrive_causes SET lanes = lanes - 1, waiting = waiting - OLD.n + 1
    WHERE subscription = OLD.subscription AND fingerprint = OLD.cause;
    DELETE FROM redrive_causes WHERE subscription = OLD.subscription AND fingerprint = OLD.cause AND lanes = 0;
END;

CREATE TRIGGER redrive_cause_joined AFTER UPDATE OF cause ON redrive_lanes
WHEN NEW.cause IS NOT NULL AND NEW.cause IS NOT OLD.cause BEGIN
    INSERT INTO redrive_causes VALUES (NEW.subscription, NEW.cause, 1, NEW.n - 1)
    ON CONFLICT DO UPDATE SET lanes = lanes + 1, waiting = waiting + excluded.waiting;
END;

CREATE TRIGGER redrive_cause_ended AFTER DELETE ON redrive_lanes WHEN OLD.cause IS NOT NULL BEGIN
    UPDATE redrive_causes SET lanes = lanes - 1, waiting = waiting - OLD.n + 1
    WHERE subscription = OLD.subscription AND fingerprint = OLD.cause;
    DELETE FROM redrive_causes WHERE subscription = OLD.subscription AND fingerprint = OLD.cause AND lanes = 0;
END;

CREATE TRIGGER redrive_loose_born AFTER INSERT ON redrive_letters WHEN NEW.lane IS NULL AND NEW.state = 'dead' BEGIN
    INSERT INTO redrive_causes VALUES (NEW.subscription, NEW.fingerprint, 1, 0)
    ON CONFLICT DO UPDATE SET lanes = lanes + 1;
END;

CREATE TRIGGER redrive_loose_left AFTER UPDATE OF state, fingerprint, lane ON redrive_letters
WHEN OLD.lane IS NULL AND OLD.state = 'dead'
  AND NOT (NEW.lane IS NULL AND NEW.state = 'dead' AND NEW.fingerprint = OLD.fingerprint) BEGIN
    UPDATE redrive_causes SET lanes = lanes - 1 WHERE subscription = OLD.subscription AND fingerprint = OLD.fingerprint;
    DELETE FROM redrive_causes WHERE subscription = OLD.subscription AND fingerprint = OLD.fingerprint AND lanes = 0;
END;

CREATE TRIGGER redrive_loose_died AFTER UPDATE OF state, fingerprint, lane ON redrive_letters
WHEN NEW.lane IS NULL AND NEW.state = 'dead'
  AND NOT (OLD.lane IS NULL AND OLD.state = 'dead' AND NEW.fingerprint = OLD.fingerprint) BEGIN
    INSERT INTO redrive_causes VALUES (NEW.subscription, NEW.fingerprint, 1, 0)
    ON CONFLICT DO UPDATE SET lanes = lanes + 1;
END;

-- Changed letters. An operator's transaction lists the letters that it changes under the version that it gives to the
-- subscription, and a row with letter 0 that says that the list is complete. The owner then reads only these.

CREATE TABLE redrive_changes (
    subscription INTEGER NOT NULL,
    version      INTEGER NOT NULL,                  -- the parked_version that the transaction has set
    letter       INTEGER NOT NULL,                  -- 0: the list of this version is complete
    lane         TEXT,                              -- NULL: the letter is in a lane of its own
    PRIMARY KEY (subscription, version, letter)
) WITHOUT ROWID;

-- Operations that have letters to run, which `dlq` names.

CREATE INDEX redrive_operations_waiting ON redrive_operations (id) WHERE waiting > 0;

-- Holds.

CREATE TABLE redrive_holds (                        -- keys whose events are kept back until an operator releases them
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription INTEGER NOT NULL,                  -- 0: all of them
    pattern      TEXT NOT NULL,
    is_prefix    INTEGER NOT NULL,                  -- 1: every key that begins with the pattern
    until        REAL,                              -- NULL: until it is released
    set_at       REAL NOT NULL,
    who          TEXT NOT NULL,
    reason       TEXT NOT NULL
);
CREATE UNIQUE INDEX redrive_holds_of ON redrive_holds (subscription, is_prefix, pattern);
CREATE INDEX redrive_letters_held ON redrive_letters (subscription, id) WHERE state = 'retrying' AND reason = 'held';
