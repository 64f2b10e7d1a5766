-- Storage format 3, as format 4 on SQLite: declarations are compared when a lease is taken; a rebuild reserves its
-- subscription; lost connections are charged; causes are counted; letters that change are listed; keys are held.

-- Declarations and reservations.

ALTER TABLE redrive.subscriptions ADD COLUMN version text;            -- of the function, as declared last; NULL: none
ALTER TABLE redrive.subscriptions ADD COLUMN key_function text;       -- the name of what gives the key; NULL: unknown
ALTER TABLE redrive.subscriptions ADD COLUMN declared_tables text;    -- JSON list of names; NULL: unknown
ALTER TABLE redrive.subscriptions ADD COLUMN declared_by_operator integer NOT NULL DEFAULT 0;
ALTER TABLE redrive.subscriptions ADD COLUMN reserved_by text;        -- the process that rebuilds it
ALTER TABLE redrive.subscriptions ADD COLUMN reserved_until double precision NOT NULL DEFAULT 0;
ALTER TABLE redrive.workers ADD COLUMN waits text NOT NULL DEFAULT '{}';    -- JSON: subscriptions it may not run, and why

-- Lost connections.

ALTER TABLE redrive.inflight ADD COLUMN lost bigint NOT NULL DEFAULT 0;  -- so many of the charges are for lost connections

-- Counters of causes: how many lanes have a dead head with a fingerprint, and how many letters wait behind these heads. A
-- dead letter in a lane of its own is one lane. Kept by triggers, as the other counters are.

ALTER TABLE redrive.lanes ADD COLUMN cause text COLLATE "C";     -- the fingerprint of its head, if that is dead
ALTER TABLE redrive.letter_counts ADD COLUMN last_at double precision NOT NULL DEFAULT 0;   -- when one of these failed last

CREATE TABLE redrive.causes (
    subscription bigint NOT NULL,
    fingerprint  text COLLATE "C" NOT NULL,
    lanes        bigint NOT NULL,
    waiting      bigint NOT NULL,
    PRIMARY KEY (subscription, fingerprint)
) WITH (fillfactor = 50);

UPDATE redrive.lanes k SET cause = l.fingerprint FROM redrive.letters l
WHERE l.subscription = k.subscription AND l.position = k.oldest AND l.state = 'dead';
INSERT INTO redrive.causes
SELECT subscription, fingerprint, sum(lanes), sum(waiting) FROM
    (SELECT subscription, cause AS fingerprint, 1 AS lanes, n - 1 AS waiting FROM redrive.lanes WHERE cause IS NOT NULL
     UNION ALL SELECT subscription, fingerprint, 1, 0 FROM redrive.letters WHERE state = 'dead' AND lane IS NULL) AS held
GROUP BY subscription, fingerprint;
UPDATE redrive.letter_counts c SET last_at = l.last_at FROM
    (SELECT subscription, reason, type, fingerprint, coalesce(max(last_failed_at), 0) AS last_at
     FROM redrive.letters WHERE state = 'dead' GROUP BY subscription, reason, type, fingerprint) AS l
WHERE c.state = 'dead' AND c.subscription = l.subscription AND c.reason = l.reason AND c.type = l.type
  AND c.fingerprint = l.fingerprint;

CREATE OR REPLACE FUNCTION redrive.letter_born() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO redrive.journal (letter, subscription, position, state, rev, at)
    VALUES (NEW.id, NEW.subscription, NEW.position, NEW.state, NEW.rev, NEW.touched_at);
    INSERT INTO redrive.letter_counts AS c
    VALUES (NEW.subscription, NEW.state, NEW.reason, NEW.type, NEW.fingerprint, 1, coalesce(NEW.last_failed_at, 0))
    ON CONFLICT (subscription, state, reason, type, fingerprint)
    DO UPDATE SET n = c.n + 1, last_at = greatest(c.last_at, excluded.last_at);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION redrive.letter_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> NEW.state THEN
        INSERT INTO redrive.journal (letter, subscription, position, state, rev, at)
        VALUES (NEW.id, NEW.subscription, NEW.position, NEW.state, NEW.rev, NEW.touched_at);
    END IF;
    UPDATE redrive.letter_counts SET n = n - 1
    WHERE subscription = OLD.subscription AND state = OLD.state AND reason = OLD.reason AND type = OLD.type
      AND fingerprint = OLD.fingerprint;
    DELETE FROM redrive.letter_counts
    WHERE subscription = OLD.subscription AND state = OLD.state AND reason = OLD.reason AND type = OLD.type
      AND fingerprint = OLD.fingerprint AND n = 0;
    INSERT INTO redrive.letter_counts AS c
    VALUES (NEW.subscription, NEW.state, NEW.reason, NEW.type, NEW.fingerprint, 1, coalesce(NEW.last_failed_at, 0))
    ON CONFLICT (subscription, state, reason, type, fingerprint)
    DO UPDATE SET n = c.n + 1, last_at = greatest(c.last_at, excluded.last_at);
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.cause_joined(of bigint, cause text, followers bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO redrive.causes AS c VALUES (of, cause, 1, followers)
    ON CONFLICT (subscription, fingerprint) DO UPDATE SET lanes = c.lanes + 1, waiting = c.waiting + excluded.waiting;
END $$;

CREATE FUNCTION redrive.cause_left(of bigint, cause text, followers bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE redrive.causes SET lanes = lanes - 1, waiting = waiting - followers
    WHERE subscription = of AND fingerprint = cause;
    DELETE FROM redrive.causes WHERE subscription = of AND fingerprint = cause AND lanes = 0;
END $$;

CREATE OR REPLACE FUNCTION redrive.lane_joined() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO redrive.lanes AS l
    VALUES (NEW.subscription, NEW.lane, 1, NEW.position, CASE NEW.state WHEN 'dead' THEN NEW.fingerprint END)
    ON CONFLICT (subscription, lane) DO UPDATE SET n = l.n + 1, oldest = least(l.oldest, excluded.oldest),
       cause = CASE WHEN excluded.oldest < l.oldest THEN excluded.cause ELSE l.cause END;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION redrive.lane_left() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM redrive.lanes WHERE subscription = OLD.subscription AND lane = OLD.lane AND n = 1;
    UPDATE redrive.lanes SET n = n - 1, oldest =
        CASE WHEN oldest < OLD.position THEN oldest ELSE coalesce((SELECT min(position) FROM redrive.letters
             WHERE subscription = OLD.subscription AND lane = OLD.lane AND state IN ('retrying', 'dead')), oldest) END,
        cause = CASE WHEN oldest < OLD.position THEN cause ELSE (SELECT CASE state WHEN 'dead' THEN fingerprint END
             FROM redrive.letters WHERE subscription = OLD.subscription AND lane = OLD.lane
             AND state IN ('retrying', 'dead') ORDER BY position LIMIT 1) END
    WHERE subscription = OLD.subscription AND lane = OLD.lane;
    RETURN NULL;
END $$;

CREATE FUNCTION redrive.lane_head_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE redrive.lanes SET cause = CASE NEW.state WHEN 'dead' THEN NEW.fingerprint END
    WHERE subscription = NEW.subscription AND lane = NEW.lane AND oldest = NEW.position;
    RETURN NULL;
END $$;
CREATE TRIGGER lane_head_changed AFTER UPDATE OF state, fingerprint ON redrive.letters FOR EACH ROW
WHEN (NEW.lane IS NOT NULL AND NEW.lane IS NOT DISTINCT FROM OLD.lane
  AND OLD.state IN ('retrying', 'dead') AND NEW.state IN ('retrying', 'dead')
  AND (OLD.state <> NEW.state OR (NEW.state = 'dead' AND OLD.fingerprint <> NEW.fingerprint)))
EXECUTE FUNCTION redrive.lane_head_changed();

CREATE FUNCTION redrive.cause_begun() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM redrive.cause_joined(NEW.subscription, NEW.cause, NEW.n - 1);
    RETURN NULL;
END $$;
CREATE TRIGGER cause_begun AFTER INSERT ON redrive.lanes FOR EACH ROW WHEN (NEW.cause IS NOT NULL)
EXECUTE FUNCTION redrive.cause_begun();

CREATE FUNCTION redrive.cause_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.cause IS NOT DISTINCT FROM OLD.cause THEN
        UPDATE redrive.causes SET waiting = waiting + NEW.n - OLD.n
        WHERE subscription = NEW.subscription AND fingerprint = NEW.cause;
        RETURN NULL;
    END IF;
    IF OLD.cause IS NOT NULL THEN
        PERFORM redrive.cause_left(OLD.subscription, OLD.cause, OLD.n - 1);
    END IF;
    IF NEW.cause IS NOT NULL THEN
        PERFORM redrive.cause_joined(NEW.subscription, NEW.cause, NEW.n - 1);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER cause_moved AFTER UPDATE OF n, cause ON redrive.lanes FOR EACH ROW
WHEN ((OLD.cause IS NOT NULL OR NEW.cause IS NOT NULL) AND (OLD.n <> NEW.n OR OLD.cause IS DISTINCT FROM NEW.cause))
EXECUTE FUNCTION redrive.cause_moved();

CREATE FUNCTION redrive.cause_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM redrive.cause_left(OLD.subscription, OLD.cause, OLD.n - 1);
    RETURN NULL;
END $$;
CREATE TRIGGER cause_ended AFTER DELETE ON redrive.lanes FOR EACH ROW WHEN (OLD.cause IS NOT NULL)
EXECUTE FUNCTION redrive.cause_ended();

CREATE FUNCTION redrive.loose_died() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM redrive.cause_joined(NEW.subscription, NEW.fingerprint, 0);
    RETURN NULL;
END $$;
CREATE TRIGGER loose_born AFTER INSERT ON redrive.letters FOR EACH ROW
WHEN (NEW.lane IS NULL AND NEW.state = 'dead') EXECUTE FUNCTION redrive.loose_died();
CREATE TRIGGER loose_died AFTER UPDATE OF state, fingerprint, lane ON redrive.letters FOR EACH ROW
WHEN (NEW.lane IS NULL AND NEW.state = 'dead'
  AND NOT (OLD.lane IS NULL AND OLD.state = 'dead' AND NEW.fingerprint = OLD.fingerprint))
EXECUTE FUNCTION redrive.loose_died();

CREATE FUNCTION redrive.loose_left() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM redrive.cause_left(OLD.subscription, OLD.fingerprint, 0);
    RETURN NULL;
END $$;
CREATE TRIGGER loose_left AFTER UPDATE OF state, fingerprint, lane ON redrive.letters FOR EACH ROW
WHEN (OLD.lane IS NULL AND OLD.state = 'dead'
  AND NOT (NEW.lane IS NULL AND NEW.state = 'dead' AND NEW.fingerprint = OLD.fingerprint))
EXECUTE FUNCTION redrive.loose_left();

-- Changed letters. An operator's transaction lists the letters that it changes under the version that it gives to the
-- subscription, and a row with letter 0 that says that the list is complete. The owner then reads only these.

CREATE TABLE redrive.changes (
    subscription bigint NOT NULL,
    version      bigint NOT NULL,                   -- the parked_version that the transaction has set
    letter       bigint NOT NULL,                   -- 0: the list of this version is complete
    lane         text COLLATE "C",                  -- NULL: the letter is in a lane of its own
    PRIMARY KEY (subscription, version, letter)
);

-- Operations that have letters to run, which `dlq` names.

CREATE INDEX operations_waiting ON redrive.operations (id) WHERE waiting > 0;

-- Holds.

CREATE TABLE redrive.holds (                        -- keys whose events are kept back until an operator releases them
    id           bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    subscription bigint NOT NULL,                   -- 0: all of them
    pattern      text COLLATE "C" NOT NULL,
    is_prefix    bigint NOT NULL,                   -- 1: every key that begins with the pattern
    until        double precision,                  -- NULL: until it is released
    set_at       double precision NOT NULL,
    who          text COLLATE "C" NOT NULL,
    reason       text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX holds_of ON redrive.holds (subscription, is_prefix, pattern);
CREATE INDEX letters_held ON redrive.letters (subscription, id) WHERE state = 'retrying' AND reason = 'held';
