-- Storage format 4. Declarations are compared when a lease is taken; a rebuild reserves its subscription; lost connections
-- are charged; causes are counted; letters that change are listed; keys are held.

-- Declarations and reservations.

-- Lost connections.

-- Counters of causes.

-- Changed letters.

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
