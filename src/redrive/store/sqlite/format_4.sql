-- Storage format 4. Declarations are compared when a lease is taken; a rebuild reserves its subscription; lost connections
-- are charged; causes are counted; letters that change are listed; keys are held.

-- Declarations and reservations.

-- Lost connections.

-- Counters of causes.

-- Changed letters.

-- Holds.
