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
