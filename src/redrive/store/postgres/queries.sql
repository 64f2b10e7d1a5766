-- What Postgres is told in its own words; every other statement is in ../queries.sql. Names that begin with pg_ are for
-- this store alone.

-- name: meta_set
-- The inner SELECT gives a text its type, which to_jsonb must know; a number has one.
INSERT INTO redrive_meta SELECT :name, to_jsonb(given.value) FROM (SELECT :value AS value) AS given
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: identity_taken
SELECT 1 FROM redrive_meta WHERE name LIKE 'identity:%' AND value = to_jsonb(:identity::text)

-- ---------------------------------------------------------------- log

-- name: pg_append_lock
-- Before anything is read for an append, and held until it is committed: the positions of a log then become visible in
-- their order. Who takes several takes them in the order of their numbers. The first number is ours among the locks.
-- Those who listen hear of it when it is committed.
SELECT pg_advisory_xact_lock(1919247465, ?::int), pg_notify('redrive', '')

-- name: event_insert
-- A column of many rows for each parameter; the positions in the order of the rows. They need not be neighbours: all
-- logs share one sequence.
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data)
SELECT n.log, n.id, n.type, n.key, n.version, n.schema, n.time_us, n.headers, n.data
FROM unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bytea[], ?::bytea[])
     WITH ORDINALITY AS n (log, id, type, key, version, schema, time_us, headers, data, place)
ORDER BY n.place RETURNING position

-- name: event_insert_plain
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, data)
SELECT n.log, n.id, n.type, n.key, n.version, n.schema, n.time_us, n.data
FROM unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bytea[])
     WITH ORDINALITY AS n (log, id, type, key, version, schema, time_us, data, place)
ORDER BY n.place RETURNING position

-- name: pg_event_append
-- One event, whose version follows from what the log holds: it is claimed.
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data)
VALUES (?1, ?2, ?3, ?4::text, CASE WHEN ?4::text IS NOT NULL THEN
        (SELECT coalesce(max(version), 0) + 1 FROM redrive_events WHERE log = ?1 AND key = ?4 AND version > 0) END, ?5, ?6, ?7, ?8)
RETURNING position, version

-- name: pg_event_emit
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data)
VALUES (?1, ?2, ?3, ?4::text, CASE WHEN ?4::text IS NOT NULL THEN
        (SELECT coalesce(max(version), 0) + 1 FROM redrive_events WHERE log = ?1 AND key = ?4 AND version > 0) END, ?5, ?6, ?7, ?8)
ON CONFLICT (log, id) DO NOTHING

-- name: pg_event_emit_block
INSERT INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data) VALUES
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?),
(?1, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: pg_key_version
SELECT max(version) FROM redrive_events WHERE log = ? AND key = ? AND version > 0

-- name: key_versions
SELECT coalesce(json_object_agg(k.key, coalesce((SELECT max(version) FROM redrive_events
                                                 WHERE log = ?1 AND key = k.key AND version > 0), 0)), '{}')::text
FROM jsonb_array_elements_text(?2::jsonb) AS k (key)

-- name: events_of_key
-- What is in the index on keys, and what landed without a version after the last event that has this one or a lower.
SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events
WHERE log = ?1 AND key = ?2 AND version > ?3
UNION ALL SELECT e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data
FROM redrive_logs l CROSS JOIN redrive_events e
WHERE l.id = ?1 AND e.log = l.id AND e.position >= l.landed_from AND e.version IS NULL AND e.key = ?2
  AND e.position > coalesce((SELECT position FROM redrive_events
                             WHERE log = ?1 AND key = ?2 AND version > 0 AND version <= ?3 ORDER BY version DESC LIMIT 1), 0)
ORDER BY 1 LIMIT ?4

-- name: events_near
SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events
WHERE log = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?

-- name: events_up
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload <> 0 THEN headers END,
       CASE WHEN :payload <> 0 THEN data END
FROM redrive_events
WHERE log = :log AND position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:key::text IS NULL OR key = :key)
  AND (:type::text IS NULL OR type = :type OR type ~ (SELECT redrive.glob(:type)))
ORDER BY position LIMIT :limit

-- name: events_down
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload <> 0 THEN headers END,
       CASE WHEN :payload <> 0 THEN data END
FROM redrive_events
WHERE log = :log AND position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:key::text IS NULL OR key = :key)
  AND (:type::text IS NULL OR type = :type OR type ~ (SELECT redrive.glob(:type)))
ORDER BY position DESC LIMIT :limit

-- name: events_of_key_up
-- The plus keeps the planner to the index on the key.
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload <> 0 THEN headers END,
       CASE WHEN :payload <> 0 THEN data END
FROM redrive_events
WHERE log = :log AND key = :key AND version > 0 AND +position > :after AND +position <= :upto
  AND time_us >= :since AND time_us < :until AND (:type::text IS NULL OR type = :type OR type ~ (SELECT redrive.glob(:type)))
ORDER BY version LIMIT :limit

-- name: events_of_key_down
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload <> 0 THEN headers END,
       CASE WHEN :payload <> 0 THEN data END
FROM redrive_events
WHERE log = :log AND key = :key AND version > 0 AND +position > :after AND +position <= :upto
  AND time_us >= :since AND time_us < :until AND (:type::text IS NULL OR type = :type OR type ~ (SELECT redrive.glob(:type)))
ORDER BY version DESC LIMIT :limit

-- name: events_anywhere_up
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload <> 0 THEN headers END,
       CASE WHEN :payload <> 0 THEN data END
FROM redrive_events
WHERE position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:type::text IS NULL OR type = :type OR type ~ (SELECT redrive.glob(:type)))
ORDER BY position LIMIT :limit

-- name: events_anywhere_down
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload <> 0 THEN headers END,
       CASE WHEN :payload <> 0 THEN data END
FROM redrive_events
WHERE position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:type::text IS NULL OR type = :type OR type ~ (SELECT redrive.glob(:type)))
ORDER BY position DESC LIMIT :limit

-- ---------------------------------------------------------------- subscriptions and progress

-- name: hold
SELECT 1 FROM redrive_progress WHERE subscription = :subscription FOR UPDATE

-- name: now
-- The server's own, whatever the caller's clock says.
SELECT redrive.clock() WHERE :now::float8 IS NOT NULL

-- name: fence
-- First in every settling transaction. No row: another owner, or progress is not where we believe. Locks the row.
UPDATE redrive_progress SET epoch = epoch WHERE member = ? AND epoch = ? AND position = ?
RETURNING parked_version, paused, quiet_until

-- name: pg_fence_believed
-- The fence for one whose answer is known, so that nobody waits for it. If it is another one the server refuses whatever
-- was sent with it, a COMMIT too.
WITH held AS (
    UPDATE redrive_progress SET epoch = epoch
    WHERE member = ? AND epoch = ? AND position = ? AND parked_version = ? AND paused = ? AND quiet_until = ? RETURNING 1)
SELECT 1 / count(*) FROM held

-- name: advance
-- Nobody waits for the answer: if the row is not ours, the server itself refuses, and passes over a COMMIT behind it.
WITH moved AS (
    UPDATE redrive_progress SET position = :position, anchor = coalesce(:anchor, anchor), applied = applied + :applied,
           ignored = ignored + :ignored, settled_at = :now, last_type = coalesce(:last_type, last_type),
           last_time_us = coalesce(:last_time_us, last_time_us)
    WHERE member = :member AND epoch = :epoch RETURNING 1)
SELECT 1 / count(*) FROM moved

-- name: pg_done_none
-- Drops the chunks that the prefix has passed; refuses if anything is marked in them, or in the next one up to there.
WITH passed AS (DELETE FROM redrive_done_chunks WHERE member = ?1 AND chunk < ?2 RETURNING marks),
     marked AS (SELECT FROM passed WHERE strpos(marks, '1') > 0
                UNION ALL SELECT FROM redrive_done_chunks
                WHERE member = ?1 AND chunk = ?2 AND strpos(left(marks, ?3::int), '1') > 0)
SELECT 1 / (count(*) = 0)::int FROM marked

-- name: lease_take
-- Leases run by this server's clock, whatever the workers' clocks say: only how long they last comes from there.
UPDATE redrive_progress SET epoch = epoch + 1, owner = :owner, unclean = 1, boot = :boot, halted = NULL,
       lease_until = redrive.clock() + (:until::float8 - :now::float8), lease_set_at = redrive.clock(),
       taken_at = redrive.clock()
WHERE member = :member AND epoch = :epoch RETURNING epoch

-- name: lease_renew
UPDATE redrive_progress SET lease_until = redrive.clock() + (:until::float8 - :now::float8), lease_set_at = redrive.clock()
WHERE member = :member AND epoch = :epoch RETURNING parked_version, paused

-- name: worker_beat
INSERT INTO redrive_workers AS w (owner, version, started_at, seen_at, runs, waits)
VALUES (:owner, :version, redrive.clock() - (:now::float8 - :started_at::float8), redrive.clock(), :runs, :waits)
ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at, runs = excluded.runs, waits = excluded.waits

-- name: progress_reset
UPDATE redrive_progress SET position = :position, anchor = :anchor, epoch = epoch + 1, parked_version = parked_version + 1,
       applied = 0, ignored = 0, quiet_until = greatest(quiet_until, :quiet_until), owner = NULL, lease_until = 0,
       unclean = 0, started_from = :position, halted = NULL, last_type = NULL, last_time_us = NULL
WHERE subscription = :subscription

-- name: table_extras
-- Indexes and triggers that somebody put on a table, in words that make them again; not those of its constraints.
SELECT extra.sql FROM
  (SELECT i.relname AS name, pg_get_indexdef(i.oid) AS sql FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
   WHERE x.indrelid = to_regclass(quote_ident(:name))
     AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conindid = x.indexrelid AND c.contype IN ('p', 'u', 'x'))
   UNION ALL SELECT t.tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t
   WHERE t.tgrelid = to_regclass(quote_ident(:name)) AND NOT t.tgisinternal) AS extra
ORDER BY extra.name

-- name: table_exists
SELECT 1 FROM pg_class WHERE oid = to_regclass(quote_ident(:name)) AND relkind IN ('r', 'p')

-- name: table_owner
SELECT s.name FROM redrive_tables t JOIN redrive_subscriptions s ON s.id = t.subscription WHERE t.name = :name

-- ---------------------------------------------------------------- letters

-- name: letter_add
-- A column of many rows for each parameter; the numbers in the order of the rows.
INSERT INTO redrive_letters (subscription, position, lane, event_id, type, key, state, reason, attempts, due_at, due_set_at,
       delay, parked_at, first_failed_at, last_failed_at, error_type, error_message, fingerprint, touched_at, resolved_by,
       dependency, edits)
SELECT n.subscription, n.position, n.lane, n.event_id, n.type, n.key, n.state, n.reason, n.attempts, n.due_at, n.due_set_at,
       n.delay, n.parked_at, n.first_failed_at, n.last_failed_at, n.error_type, n.error_message, n.fingerprint, n.touched_at,
       n.resolved_by, n.dependency,
       (SELECT coalesce(max(rev), 0) FROM redrive_edits e WHERE e.subscription = n.subscription AND e.position = n.position)
FROM unnest(?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::bigint[],
       ?::float8[], ?::float8[], ?::float8[], ?::float8[], ?::float8[], ?::float8[], ?::text[], ?::text[], ?::text[],
       ?::float8[], ?::text[], ?::text[]) WITH ORDINALITY AS n (subscription, position, lane, event_id, type, key, state, reason,
       attempts, due_at, due_set_at, delay, parked_at, first_failed_at, last_failed_at, error_type, error_message,
       fingerprint, touched_at, resolved_by, dependency, place)
ORDER BY n.place RETURNING id

-- name: attempt_add
INSERT INTO redrive_attempts (letter, attempt, at, outcome, error_type, error_message, traceback, fingerprint, worker)
SELECT n.letter, n.attempt, n.at, n.outcome, n.error_type, n.error_message, n.traceback, n.fingerprint, n.worker
FROM unnest(?::bigint[], ?::bigint[], ?::float8[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[])
     WITH ORDINALITY AS n (letter, attempt, at, outcome, error_type, error_message, traceback, fingerprint, worker, place)
ORDER BY n.place

-- name: lane_heads
SELECT DISTINCT ON (lane) lane, position, id, state, due_at, due_set_at, delay, rev, attempts, replaying, edits,
       count(*) OVER (PARTITION BY lane), lane
FROM redrive_letters WHERE subscription = ? AND lane IS NOT NULL AND state IN ('retrying', 'dead') ORDER BY lane, position

-- name: changed_lanes
SELECT c.lane, l.position, l.id, l.state, l.due_at, l.due_set_at, l.delay, l.rev, l.attempts, l.replaying, l.edits,
       coalesce(k.n, 0)
FROM (SELECT DISTINCT lane FROM redrive_changes WHERE subscription = ?1 AND version > ?2 AND version <= ?3 AND lane IS NOT NULL) c
LEFT JOIN redrive_lanes k ON k.subscription = ?1 AND k.lane = c.lane
LEFT JOIN LATERAL (SELECT o.* FROM redrive_letters o WHERE o.subscription = ?1 AND o.lane = c.lane
                   AND o.state IN ('retrying', 'dead') ORDER BY o.position LIMIT 1) l ON true

-- name: letter_events
SELECT l.id, e.position, e.id, e.type, e.key, e.version,
       CASE WHEN e.schema = 0 AND d.data IS NOT NULL THEN 1 ELSE e.schema END, e.time_us, e.headers, coalesce(d.data, e.data)
FROM redrive_letters l JOIN redrive_events e ON e.position = l.position
LEFT JOIN redrive_edits d ON d.subscription = l.subscription AND d.position = l.position AND d.rev = l.edits
WHERE l.id = ANY (ARRAY(SELECT jsonb_array_elements_text(?::jsonb)::bigint))

-- name: letter_counts_of
-- By the state that is shown (policy/letters.py, shown_state): what only waits behind another letter is not retrying.
SELECT CASE WHEN state = 'retrying' AND reason = 'behind_head' THEN 'waiting' ELSE state END AS shown, sum(n)::bigint
FROM redrive_letter_counts WHERE subscription = :subscription GROUP BY 1

-- name: letter_replay
UPDATE redrive_letters SET state = 'retrying', replaying = :pace, rev = rev + 1, due_at = :due_at, due_set_at = :now,
       delay = :due_at::float8 - :now::float8, touched_at = :now, operation = :operation, auto_replays = auto_replays + :automatic
WHERE id = :id AND rev = :rev AND state = 'dead'

-- name: edits_latest
-- Of events that are still to come, as in a rebuild.
SELECT DISTINCT ON (position) position, rev, data FROM redrive_edits WHERE subscription = :subscription AND position > :above
ORDER BY position, rev DESC

-- name: inflight_charge
UPDATE redrive_inflight SET running = 0, charges = charges + (boot IS NOT DISTINCT FROM :boot)::int,
  lost = lost + (boot IS NOT DISTINCT FROM :boot)::int * :lost
WHERE member = :member AND running = 1

-- ---------------------------------------------------------------- audit

-- name: audit_last
-- Locks the end of the chain until the commit: who waited for it sees what was added meanwhile.
SELECT hash FROM redrive_audit_end FOR UPDATE

-- name: audit_add
WITH last AS (UPDATE redrive_audit_end SET id = id + 1, hash = :hash RETURNING id)
INSERT INTO redrive_audit (id, at, who, action, subscription, target, reason, details, hash)
SELECT last.id, :now, :who, :action, :subscription, :target, :reason, :details, :hash FROM last RETURNING id

-- name: audit_highest
SELECT id FROM redrive_audit_end

-- ---------------------------------------------------------------- ledger

-- name: ledger_journal_gaps
SELECT l.position FROM redrive_letters l WHERE l.subscription = :subscription AND l.state IS DISTINCT FROM
  (SELECT j.state FROM redrive_journal j WHERE j.letter = l.id ORDER BY j.seq DESC LIMIT 1) ORDER BY l.position

-- name: ledger_step_positions
SELECT position FROM
  (SELECT position, state, lag(state) OVER (PARTITION BY letter ORDER BY seq) AS before FROM redrive_journal
   WHERE subscription = :subscription) AS steps
WHERE state = :state AND before IS NOT DISTINCT FROM :before ORDER BY position

-- name: ledger_receipts
SELECT o.id FROM redrive_operations o LEFT JOIN
  (SELECT operation, count(*) AS n, count(*) FILTER (WHERE result = 'applied') AS applied,
          count(*) FILTER (WHERE result = 'failed') AS failed, count(*) FILTER (WHERE result = 'skipped') AS skipped,
          count(*) FILTER (WHERE asked = 1 AND result IS NULL) AS waiting
   FROM redrive_operation_letters GROUP BY operation) l ON l.operation = o.id
WHERE o.selected <> coalesce(l.n, 0) OR o.applied <> coalesce(l.applied, 0) OR o.failed <> coalesce(l.failed, 0)
   OR o.skipped <> coalesce(l.skipped, 0) OR o.waiting <> coalesce(l.waiting, 0)
UNION SELECT operation FROM redrive_operation_letters WHERE operation NOT IN (SELECT id FROM redrive_operations)
ORDER BY 1

-- name: ledger_misfiled
SELECT l.position FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.subscription = :subscription AND l.state IN ('retrying', 'dead') AND l.lane IS NOT NULL AND
      CASE s.ordering WHEN 'key' THEN l.lane IS DISTINCT FROM l.key WHEN 'total' THEN l.lane <> '*' ELSE true END
ORDER BY l.position

-- ---------------------------------------------------------------- selections, operations, notes

-- name: select_letters
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = :state AND l.id > :after AND l.id <= :upto
  AND (:subscription::bigint IS NULL OR l.subscription = :subscription)
  AND (:type::text IS NULL OR l.type ~ (SELECT redrive.glob(:type)))
  AND (:key::text IS NULL OR l.key = :key) AND (:reason::text IS NULL OR l.reason = :reason)
  AND (:fingerprint::text IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || chr(1114111)))
  AND (:error::text IS NULL OR strpos(lower(l.error_type || ': ' || l.error_message), lower(:error COLLATE "C")) > 0)
  AND (:since::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_letters_by_cause
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = 'dead' AND l.fingerprint = :cause AND l.subscription = :of AND l.id > :after
  AND (:subscription::bigint IS NULL OR l.subscription = :subscription)
  AND (:type::text IS NULL OR l.type ~ (SELECT redrive.glob(:type)))
  AND (:key::text IS NULL OR l.key = :key) AND (:reason::text IS NULL OR l.reason = :reason)
  AND (:fingerprint::text IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || chr(1114111)))
  AND (:error::text IS NULL OR strpos(lower(l.error_type || ': ' || l.error_message), lower(:error COLLATE "C")) > 0)
  AND (:since::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_letters_by_key
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = 'dead' AND l.key = :key AND l.id > :after
  AND (:subscription::bigint IS NULL OR l.subscription = :subscription)
  AND (:type::text IS NULL OR l.type ~ (SELECT redrive.glob(:type)))
  AND (:key::text IS NULL OR l.key = :key) AND (:reason::text IS NULL OR l.reason = :reason)
  AND (:fingerprint::text IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || chr(1114111)))
  AND (:error::text IS NULL OR strpos(lower(l.error_type || ': ' || l.error_message), lower(:error COLLATE "C")) > 0)
  AND (:since::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_by_event
SELECT id FROM redrive_letters WHERE event_id >= :start AND event_id < :start || chr(1114111) AND state <> 'superseded'
ORDER BY id LIMIT :limit

-- name: select_letters_by_time
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = 'dead' AND l.id > :after AND coalesce(l.last_failed_at, l.parked_at) >= :from_time::float8
  AND coalesce(l.last_failed_at, l.parked_at) < :to_time::float8
  AND (:subscription::bigint IS NULL OR l.subscription = :subscription)
  AND (:type::text IS NULL OR l.type ~ (SELECT redrive.glob(:type)))
  AND (:key::text IS NULL OR l.key = :key) AND (:reason::text IS NULL OR l.reason = :reason)
  AND (:fingerprint::text IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || chr(1114111)))
  AND (:error::text IS NULL OR strpos(lower(l.error_type || ': ' || l.error_message), lower(:error COLLATE "C")) > 0)
  AND (:since::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until::float8 IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_count_in_time
SELECT count(*) FROM (SELECT 1 FROM redrive_letters l
WHERE l.state = 'dead' AND coalesce(l.last_failed_at, l.parked_at) >= :from_time::float8
  AND coalesce(l.last_failed_at, l.parked_at) < :to_time::float8 LIMIT :limit) AS found

-- name: select_first_in_time
SELECT min(l.id) FROM redrive_letters l
WHERE l.state = 'dead' AND coalesce(l.last_failed_at, l.parked_at) >= :from_time::float8
  AND coalesce(l.last_failed_at, l.parked_at) < :to_time::float8 AND l.id > :after

-- name: operation_add
INSERT INTO redrive_operations (action, who, reason, at, selected, rate)
VALUES (:action, :who, :reason, :now, :selected, :rate) RETURNING id

-- name: operation_results
SELECT letter, result, why FROM redrive_operation_letters
WHERE operation = :id AND letter > :after AND (:result::text IS NULL OR result = :result) ORDER BY letter LIMIT :limit

-- name: operation_bad
-- Those that failed or were skipped, a few among many.
SELECT letter, result, why FROM redrive_operation_letters
WHERE operation = :id AND letter > :after AND result = :result AND result IN ('failed', 'skipped') ORDER BY letter LIMIT :limit

-- name: fingerprint_like
SELECT DISTINCT fingerprint FROM redrive_letter_counts WHERE fingerprint >= :start AND fingerprint < :start || chr(1114111)

-- ---------------------------------------------------------------- doctor

-- name: foreign_writers
-- The user's triggers on redrive's tables, functions whose text names them, and views that can be written to.
SELECT w.kind, w.name FROM
  (SELECT 'trigger' AS kind, t.tgname || ' on ' || t.tgrelid::regclass::text AS name
   FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
   WHERE NOT t.tgisinternal AND c.relnamespace = to_regnamespace('redrive') AND p.pronamespace <> c.relnamespace
   UNION ALL SELECT 'function', p.oid::regproc::text FROM pg_proc p
   WHERE p.prosrc ~* 'redrive"?\s*[.]' AND p.pronamespace NOT IN
         (SELECT oid FROM pg_namespace WHERE nspname IN ('redrive', 'pg_catalog', 'information_schema'))
   UNION ALL SELECT 'view', c.oid::regclass::text FROM pg_class c
   WHERE c.relkind = 'v' AND c.relnamespace <> to_regnamespace('redrive') AND pg_relation_is_updatable(c.oid, true) & 28 <> 0
     AND EXISTS (SELECT 1 FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                 JOIN pg_class t ON t.oid = d.refobjid AND d.refclassid = 'pg_class'::regclass
                 WHERE r.ev_class = c.oid AND t.relnamespace = to_regnamespace('redrive'))) AS w (kind, name)
ORDER BY w.kind, w.name

-- name: doctor_version
SELECT current_setting('server_version_num')::int / 10000 || '.' || current_setting('server_version_num')::int % 10000

-- name: doctor_journal_mode
SHOW fsync

-- name: doctor_synchronous
SHOW synchronous_commit

-- name: doctor_newest
SELECT max(at) FROM (SELECT greatest(coalesce(settled_at, 0), lease_set_at) AS at FROM redrive_progress
                     UNION ALL (SELECT at FROM redrive_audit ORDER BY id DESC LIMIT 1)) AS known

-- name: doctor_old_dead
SELECT count(*) FILTER (WHERE parked_at < :before), count(*) FROM (SELECT parked_at FROM redrive_letters
       WHERE state = 'dead' AND subscription = :subscription ORDER BY id LIMIT :limit) AS first

-- name: doctor_late
SELECT count(*) FILTER (WHERE due_at > 0 AND due_at < :before), count(*) FROM
  (SELECT CASE WHEN k.oldest < l.position THEN 0 ELSE l.due_at END AS due_at
   FROM redrive_letters l LEFT JOIN redrive_lanes k ON k.subscription = l.subscription AND k.lane = l.lane
   WHERE l.state = 'retrying' AND l.subscription = :subscription ORDER BY l.id LIMIT :limit) AS first

-- ---------------------------------------------------------------- prune

-- name: prune_superseded
SELECT id, position, type FROM redrive_letters l
WHERE state = 'superseded' AND subscription = :subscription AND id > :after AND touched_at < :before
  AND (resolved_by IS DISTINCT FROM :was_open OR (position <= :progress AND NOT EXISTS
       (SELECT 1 FROM redrive_letters o WHERE o.subscription = :subscription AND o.position = l.position
        AND o.state IN ('retrying', 'dead') AND o.state <> 'superseded')))
ORDER BY id LIMIT :limit

-- name: prune_attempt_count
SELECT count(*) FROM redrive_attempts WHERE letter = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))

-- name: prune_journal_count
SELECT count(*) FROM redrive_journal WHERE letter = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))

-- name: prune_groups
SELECT state, reason, type, fingerprint, count(*) FROM redrive_letters WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))
GROUP BY state, reason, type, fingerprint

-- name: prune_attempts
DELETE FROM redrive_attempts WHERE letter = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))

-- name: prune_journal
DELETE FROM redrive_journal WHERE letter = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))

-- name: prune_journal_but_last
DELETE FROM redrive_journal AS j WHERE letter = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))
  AND seq < (SELECT max(seq) FROM redrive_journal o WHERE o.letter = j.letter)

-- name: prune_letters
DELETE FROM redrive_letters WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))

-- name: prune_letters_at
-- In two halves, because there is an index for each.
SELECT id, position, state, type FROM redrive_letters
WHERE subscription = :subscription AND state <> 'superseded'
  AND position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb)::bigint))
UNION ALL SELECT id, position, state, type FROM redrive_letters
WHERE subscription = :subscription AND state = 'superseded'
  AND position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb)::bigint)) ORDER BY id

-- name: prune_edits_at
DELETE FROM redrive_edits WHERE subscription = :subscription
  AND position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb)::bigint))

-- name: prune_events_types
SELECT type, count(*) FROM redrive_events WHERE position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb)::bigint))
  AND position > :above AND position <= :upto GROUP BY type

-- name: prune_events_count
-- Events that nobody needs: not the one with the highest version of its key, because versions count on from it.
SELECT count(*) FROM redrive_events e WHERE e.log = :log AND e.position <= :upto AND (e.version IS NULL OR EXISTS
      (SELECT 1 FROM redrive_events n WHERE n.log = :log AND n.key = e.key AND n.version > e.version AND n.position <= :last))

-- name: prune_events_page
SELECT e.position FROM redrive_events e WHERE e.log = :log AND e.position <= :upto AND (e.version IS NULL OR EXISTS
      (SELECT 1 FROM redrive_events n WHERE n.log = :log AND n.key = e.key AND n.version > e.version AND n.position <= :last))
ORDER BY e.position LIMIT :limit

-- name: prune_events_letters
SELECT count(*) FROM redrive_letters l JOIN redrive_events e ON e.position = l.position
WHERE l.subscription = :subscription AND l.state = 'discarded' AND l.position <= :upto AND e.log = :log AND (e.version IS NULL OR EXISTS
      (SELECT 1 FROM redrive_events n WHERE n.log = :log AND n.key = e.key AND n.version > e.version AND n.position <= :last))

-- name: prune_events
DELETE FROM redrive_events WHERE position = ANY (ARRAY(SELECT jsonb_array_elements_text(:positions::jsonb)::bigint))

-- name: pruned_highest
SELECT coalesce(max(value::bigint), 0) FROM redrive_meta WHERE name LIKE 'pruned log %'

-- ---------------------------------------------------------------- copying a store

-- name: copy_numbers
SELECT t.name, coalesce(pg_sequence_last_value(pg_get_serial_sequence('redrive.' || t.name, t.key)::regclass), 0)
FROM (VALUES ('logs', 'id'), ('events', 'position'), ('subscriptions', 'id'), ('letters', 'id'), ('attempts', 'id'),
             ('journal', 'seq'), ('operations', 'id'), ('notes', 'id'), ('holds', 'id'), ('controls', 'id'), ('scheduled', 'seq'))
     AS t (name, key)

-- name: paste_number
SELECT setval(pg_get_serial_sequence('redrive.' || :name::text,
       CASE :name WHEN 'events' THEN 'position' WHEN 'journal' THEN 'seq' WHEN 'scheduled' THEN 'seq' ELSE 'id' END), :highest) WHERE :highest > 0

-- name: paste_audit
-- The end of the chain moves with its rows.
WITH last AS (UPDATE redrive_audit_end SET id = ?1, hash = ?9)
INSERT INTO redrive_audit (id, at, who, action, subscription, target, reason, details, hash)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)

-- ---------------------------------------------------------------- scheduled events

-- name: scheduled_add
-- Due times go by this server's clock, whatever the caller's says: only the delay comes from there.
INSERT INTO redrive_scheduled (log, id, type, key, schema, time_us, headers, data, due_at, set_at, delay)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, CASE WHEN ?11::float8 IS NULL THEN ?9::float8 ELSE clock.now + ?11::float8 END,
       CASE WHEN ?10::float8 IS NOT NULL THEN clock.now END, ?11
FROM (SELECT redrive.clock() AS now) AS clock

-- name: scheduled_emit
INSERT INTO redrive_scheduled (log, id, type, key, schema, time_us, headers, data, due_at, set_at, delay)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, CASE WHEN ?11::float8 IS NULL THEN ?9::float8 ELSE clock.now + ?11::float8 END,
       CASE WHEN ?10::float8 IS NOT NULL THEN clock.now END, ?11
FROM (SELECT redrive.clock() AS now) AS clock
WHERE NOT EXISTS (SELECT 1 FROM redrive_events WHERE log = ?1 AND id = ?2)
ON CONFLICT (log, id) DO NOTHING

-- ---------------------------------------------------------------- limits

-- name: buckets_forget
-- A full bucket and none at all are the same. Who holds one at this moment takes from it: nobody waits for that.
DELETE FROM redrive_buckets WHERE name IN (
    SELECT name FROM redrive_buckets WHERE name > :low AND name < :high AND full_at <= :now FOR UPDATE SKIP LOCKED
)

-- ---------------------------------------------------------------- for this store alone

-- name: pg_sync
-- Something to commit that leaves no row behind: a commit that waits for the disk waits for all before it.
SELECT pg_logical_emit_message(true, 'redrive', '')

-- name: pg_pulse
-- What changes when a log grows, an owner is asked for something, or a subscription changes hands.
SELECT (SELECT array_agg(last.position ORDER BY l.id) FROM redrive_logs l
        CROSS JOIN LATERAL (SELECT max(position) AS position FROM redrive_events e WHERE e.log = l.id) AS last),
       (SELECT sum(parked_version + epoch) FROM redrive_progress), (SELECT count(*) FROM redrive_progress WHERE owner IS NULL)

-- name: pg_touched
-- Rows that this transaction has written so far, by table; those that were undone are counted, too.
SELECT CASE WHEN pg_table_is_visible(relid) THEN relname::text ELSE schemaname || '.' || relname END,
       n_tup_ins, n_tup_upd, n_tup_del
FROM pg_stat_xact_user_tables WHERE schemaname <> 'redrive' AND n_tup_ins + n_tup_upd + n_tup_del > 0

-- name: pg_place
-- Which database of which server this is, for as long as the server runs; in whatever time zone it is asked.
SELECT current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text

-- name: pg_isolation
-- The same, and what a transaction sees of others.
SELECT current_setting('transaction_isolation'), current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text

-- name: pg_lock_timeout
SELECT current_setting('lock_timeout')

-- name: pg_set_lock_timeout
SELECT set_config('lock_timeout', ?, true)

-- ---------------------------------------------------------------- metrics

-- name: metrics_bytes
-- How large the store is.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'redrive' AND c.relkind = 'r'

-- ---------------------------------------------------------------- landing

-- name: event_land
-- As event_insert. A row whose id is taken is left out; the caller counts.
INSERT INTO redrive_events (log, id, type, key, schema, time_us, headers, data)
SELECT n.log, n.id, n.type, n.key, n.schema, n.time_us, n.headers, n.data
FROM unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::bytea[], ?::bytea[])
     WITH ORDINALITY AS n (log, id, type, key, schema, time_us, headers, data, place)
ORDER BY n.place ON CONFLICT (log, id) DO NOTHING

-- name: event_land_plain
INSERT INTO redrive_events (log, id, type, key, schema, time_us, data)
SELECT n.log, n.id, n.type, n.key, 1, n.time_us, n.data
FROM unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bytea[])
     WITH ORDINALITY AS n (log, id, type, key, time_us, data, place)
ORDER BY n.place ON CONFLICT (log, id) DO NOTHING

-- name: events_known
SELECT id, type, key, schema, data FROM redrive_events WHERE log = :log AND id IN (SELECT jsonb_array_elements_text(:ids::jsonb))

-- ---------------------------------------------------------------- mirrors of letters

-- name: journal_horizon
SELECT pg_snapshot_xmin(now.here)::text::bigint, pg_snapshot_xmax(now.here)::text::bigint
FROM (SELECT pg_current_snapshot() AS here) AS now

-- name: journal_behind
SELECT DISTINCT letter FROM redrive_journal
WHERE seq > :after AND letter = ANY (ARRAY(SELECT jsonb_array_elements_text(:ids::jsonb)::bigint))
