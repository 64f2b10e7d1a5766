-- Storage format 4. Declarations are compared when a lease is taken; a rebuild reserves its subscription; lost connections
-- are charged; causes are counted; letters that change are listed; keys are held.

-- Declarations and reservations.

-- Lost connections.

-- Counters of causes.

-- Changed letters. An operator's transaction lists the letters that it changes under the version that it gives to the
-- subscription, and a row with letter 0 that says that the list is complete. The owner then reads only these.

CREATE TABLE redrive_changes (
    subscription INTEGER NOT NULL,
    version      INTEGER NOT NULL,                  -- the parked_version that the transaction has set
    letter       INTEGER NOT NULL,                  -- 0: the list of this version is complete
    lane         TEXT,                              -- NULL: the letter is in a lane of its own
    PRIMARY KEY (subscription, version, letter)
) WITHOUT ROWID;

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
