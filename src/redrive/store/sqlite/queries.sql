-- What SQLite is told in its own words; every other statement is in ../queries.sql.

-- name: meta_set
INSERT INTO redrive_meta VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: identity_taken
-- Is this the identity of a subscription that was renamed?
SELECT 1 FROM redrive_meta WHERE name LIKE 'identity:%' AND value = :identity

-- name: fence
-- First in every settling transaction, which has the write lock already: nobody moves what is looked at.
SELECT parked_version, paused, quiet_until FROM redrive_progress WHERE member = ? AND epoch = ? AND position = ?

-- ---------------------------------------------------------------- log

-- name: event_insert
-- Run with one VALUES row or several. FAIL: what was inserted before the failing row stays until the transaction or the
-- savepoint is rolled back, which happens anyway; so SQLite need not copy every page it touches to undo the statement.
INSERT OR FAIL INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: event_insert_plain
INSERT OR FAIL INTO redrive_events (log, id, type, key, version, schema, time_us, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: emission_insert
-- Run likewise. A row whose id is taken is left out; the caller counts. The log is the same in all of them.
INSERT OR IGNORE INTO redrive_events (log, id, type, key, version, schema, time_us, headers, data)
VALUES (?1, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: emission_insert_plain
INSERT OR IGNORE INTO redrive_events (log, id, type, key, version, schema, time_us, data)
VALUES (?1, ?, ?, ?, ?, ?, ?, ?)

-- name: key_versions
-- The last versions of many keys, as far as they are in redrive_keys, as one JSON object: one step, however many keys there are.
SELECT json_group_object(value, coalesce((SELECT max(version) FROM redrive_keys WHERE log = ?1 AND key = value), 0))
FROM json_each(?2)

-- name: versions_above
-- The versions of all keys above a position, or of what is not in redrive_keys yet: the last one of a key comes last.
SELECT json_group_object(key, version) FROM
  (SELECT key, version FROM redrive_events NOT INDEXED
   WHERE position > coalesce(?2, (SELECT below - 1 FROM redrive_keyed)) AND log = ?1 AND version > 0 ORDER BY position)

-- name: events_of_key
-- What is in redrive_keys, what is not yet, and what landed without a version after the last event that has this one or a lower.
SELECT e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data
FROM redrive_keys k CROSS JOIN redrive_events e ON e.position = k.position
WHERE k.log = ?1 AND k.key = ?2 AND k.version > ?3
UNION ALL SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_tail
WHERE log = ?1 AND key = ?2 AND version > ?3
UNION ALL SELECT e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data
FROM redrive_logs l CROSS JOIN redrive_events e
WHERE l.id = ?1 AND e.log = l.id AND e.position >= l.landed_from AND e.version IS NULL AND e.key = ?2
  AND e.position > coalesce((SELECT max(position) FROM redrive_tail WHERE log = ?1 AND key = ?2 AND version <= ?3),
                            (SELECT position FROM redrive_keys WHERE log = ?1 AND key = ?2 AND version <= ?3
                             ORDER BY version DESC LIMIT 1), 0)
ORDER BY 1 LIMIT ?4

-- name: events_packed
-- What `events_after` finds as one JSON text, and all their data in one piece: one step. How many, and up to where.
SELECT CAST(json_group_array(json_array(position, id, type, key, version, schema, time_us, CAST(headers AS TEXT), length(data)))
            AS BLOB), CAST(group_concat(data, '') AS BLOB), count(*), max(position)
FROM (SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events
      WHERE log = ? AND position > ? ORDER BY position LIMIT ?)

-- name: events_packed_near
-- The same of all that lies among some positions, as it lies there: to have them numbered, and sorted as they are, in an
-- inner statement would copy each value once more.
SELECT CAST(json_group_array(json_array(position, id, type, key, version, schema, time_us, CAST(headers AS TEXT), length(data)))
            AS BLOB), CAST(group_concat(data, '') AS BLOB), count(*), max(position)
FROM redrive_events NOT INDEXED WHERE log = ? AND position > ? AND position <= ?

-- name: events_near
SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events NOT INDEXED
WHERE log = ? AND position > ? AND position <= ? ORDER BY position LIMIT ?

-- name: events_up
-- A page of a listing, in order. Data is read only if asked for: it may be large.
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload THEN headers END,
       CASE WHEN :payload THEN data END
FROM redrive_events
WHERE log = :log AND position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:key IS NULL OR key = :key)
  AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY position LIMIT :limit

-- name: events_down
-- The same from the newest on.
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload THEN headers END,
       CASE WHEN :payload THEN data END
FROM redrive_events
WHERE log = :log AND position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:key IS NULL OR key = :key)
  AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY position DESC LIMIT :limit

-- name: events_of_key_up
-- What is in redrive_keys, and what is not yet. Versions are in the order of positions.
SELECT e.position, e.log, e.id, e.type, e.key, k.version, e.schema, e.time_us, length(e.data),
       CASE WHEN :payload THEN e.headers END, CASE WHEN :payload THEN e.data END
FROM redrive_keys k CROSS JOIN redrive_events e ON e.position = k.position
WHERE k.log = :log AND k.key = :key AND +k.position > :after AND +k.position <= :upto
  AND e.time_us >= :since AND e.time_us < :until AND (:type IS NULL OR e.type = :type OR e.type GLOB :type)
UNION ALL SELECT position, log, id, type, key, version, schema, time_us, length(data),
       CASE WHEN :payload THEN headers END, CASE WHEN :payload THEN data END
FROM redrive_tail
WHERE log = :log AND key = :key AND version > 0 AND position > :after AND position <= :upto
  AND time_us >= :since AND time_us < :until AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY 6 LIMIT :limit

-- name: events_of_key_down
SELECT e.position, e.log, e.id, e.type, e.key, k.version, e.schema, e.time_us, length(e.data),
       CASE WHEN :payload THEN e.headers END, CASE WHEN :payload THEN e.data END
FROM redrive_keys k CROSS JOIN redrive_events e ON e.position = k.position
WHERE k.log = :log AND k.key = :key AND +k.position > :after AND +k.position <= :upto
  AND e.time_us >= :since AND e.time_us < :until AND (:type IS NULL OR e.type = :type OR e.type GLOB :type)
UNION ALL SELECT position, log, id, type, key, version, schema, time_us, length(data),
       CASE WHEN :payload THEN headers END, CASE WHEN :payload THEN data END
FROM redrive_tail
WHERE log = :log AND key = :key AND version > 0 AND position > :after AND position <= :upto
  AND time_us >= :since AND time_us < :until AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY 6 DESC LIMIT :limit

-- name: events_anywhere_up
-- The same across all logs.
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload THEN headers END,
       CASE WHEN :payload THEN data END
FROM redrive_events
WHERE position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY position LIMIT :limit

-- name: events_anywhere_down
SELECT position, log, id, type, key, version, schema, time_us, length(data), CASE WHEN :payload THEN headers END,
       CASE WHEN :payload THEN data END
FROM redrive_events
WHERE position > :after AND position <= :upto AND time_us >= :since AND time_us < :until
  AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY position DESC LIMIT :limit

-- name: span_last
SELECT max(span) FROM redrive_spans

-- name: span_add
-- What lies between two positions. Twice through the events: grouping them by type, with their times, takes longer.
INSERT INTO redrive_spans SELECT DISTINCT :span, log, type,
       (SELECT min(time_us) FROM redrive_events WHERE position > :above AND position <= :upto),
       (SELECT max(time_us) FROM redrive_events WHERE position > :above AND position <= :upto)
FROM redrive_events NOT INDEXED WHERE position > :above AND position <= :upto

-- name: keys_add
-- In the order of the index: each of its pages is written once.
INSERT OR IGNORE INTO redrive_keys SELECT log, key, version, position FROM redrive_tail
WHERE position < :below AND version IS NOT NULL ORDER BY log, key, version

-- name: keys_added
UPDATE redrive_keyed SET below = :below WHERE below < :below

-- name: spans_up
-- Spans in which events that are asked for may lie.
SELECT DISTINCT span FROM redrive_spans
WHERE span >= :first AND span <= :last AND (:log IS NULL OR log = :log) AND high >= :since AND low < :until
  AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY span LIMIT :limit

-- name: spans_down
SELECT DISTINCT span FROM redrive_spans
WHERE span >= :first AND span <= :last AND (:log IS NULL OR log = :log) AND high >= :since AND low < :until
  AND (:type IS NULL OR type = :type OR type GLOB :type)
ORDER BY span DESC LIMIT :limit

-- ---------------------------------------------------------------- subscriptions and progress

-- name: hold
-- Nobody settles anything of a subscription, or operates on it, until the transaction ends. Here the write lock sees to it.
SELECT 1 FROM redrive_progress WHERE subscription = :subscription

-- name: now
-- The store's clock, which leases and due times go by: here it is the machine's, as the caller read it.
SELECT :now

-- name: advance
UPDATE redrive_progress SET position = :position, anchor = coalesce(:anchor, anchor), applied = applied + :applied,
       ignored = ignored + :ignored, settled_at = :now, last_type = coalesce(:last_type, last_type),
       last_time_us = coalesce(:last_time_us, last_time_us)
WHERE member = :member AND epoch = :epoch

-- name: lease_take
UPDATE redrive_progress SET epoch = epoch + 1, owner = :owner, lease_until = :until, lease_set_at = :now, taken_at = :now,
       unclean = 1, boot = :boot, halted = NULL
WHERE member = :member AND epoch = :epoch RETURNING epoch

-- name: lease_renew
UPDATE redrive_progress SET lease_until = :until, lease_set_at = :now WHERE member = :member AND epoch = :epoch
RETURNING parked_version, paused

-- name: worker_beat
INSERT INTO redrive_workers (owner, version, started_at, seen_at, runs, waits)
VALUES (:owner, :version, :started_at, :now, :runs, :waits)
ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at, runs = excluded.runs, waits = excluded.waits

-- name: progress_reset
-- Epochs never restart: the former owner, if any, is fenced by this very statement.
UPDATE redrive_progress SET position = :position, anchor = :anchor, epoch = epoch + 1, parked_version = parked_version + 1,
       applied = 0, ignored = 0, quiet_until = max(quiet_until, :quiet_until), owner = NULL, lease_until = 0,
       unclean = 0, started_from = :position, halted = NULL, last_type = NULL, last_time_us = NULL
WHERE subscription = :subscription

-- name: table_extras
-- Indexes and triggers that somebody put on a table: they are lost when it is dropped.
SELECT sql FROM sqlite_master WHERE tbl_name = :name COLLATE NOCASE AND type IN ('index', 'trigger') AND sql IS NOT NULL ORDER BY name

-- name: table_exists
-- SQLite does not tell Orders from orders: neither may we, a rebuild drops what it finds.
SELECT 1 FROM sqlite_master WHERE name = :name COLLATE NOCASE AND type = 'table'

-- name: table_owner
SELECT s.name FROM redrive_tables t JOIN redrive_subscriptions s ON s.id = t.subscription WHERE t.name = :name COLLATE NOCASE

-- ---------------------------------------------------------------- letters

-- name: letter_add
-- Run with one VALUES row or several.
INSERT INTO redrive_letters (subscription, position, lane, event_id, type, key, state, reason, attempts, due_at, due_set_at,
       delay, parked_at, first_failed_at, last_failed_at, error_type, error_message, fingerprint, touched_at, resolved_by,
       dependency, edits)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
       (SELECT coalesce(max(rev), 0) FROM redrive_edits WHERE subscription = ?1 AND position = ?2))

-- name: attempt_add
INSERT INTO redrive_attempts (letter, attempt, at, outcome, error_type, error_message, traceback, fingerprint, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: lane_heads
-- SQLite fills the bare columns from the row with the minimum.
SELECT lane, min(position), id, state, due_at, due_set_at, delay, rev, attempts, replaying, edits, count(*), lane
FROM redrive_letters WHERE subscription = ? AND lane IS NOT NULL AND state IN ('retrying', 'dead') GROUP BY lane

-- name: changed_lanes
-- Lanes of changed letters: the head, if there is one, and how many open letters there are.
SELECT c.lane, l.position, l.id, l.state, l.due_at, l.due_set_at, l.delay, l.rev, l.attempts, l.replaying, l.edits,
       coalesce(k.n, 0)
FROM (SELECT DISTINCT lane FROM redrive_changes WHERE subscription = ?1 AND version > ?2 AND version <= ?3 AND lane IS NOT NULL) c
LEFT JOIN redrive_lanes k ON k.subscription = ?1 AND k.lane = c.lane
LEFT JOIN redrive_letters l ON l.id = (SELECT o.id FROM redrive_letters o WHERE o.subscription = ?1 AND o.lane = c.lane
                                       AND o.state IN ('retrying', 'dead') ORDER BY o.position LIMIT 1)

-- name: letter_events
-- The same for a JSON list of letters, each with its letter's number in front.
SELECT l.id, e.position, e.id, e.type, e.key, e.version,
       CASE WHEN e.schema = 0 AND d.data IS NOT NULL THEN 1 ELSE e.schema END, e.time_us, e.headers, coalesce(d.data, e.data)
FROM json_each(?) asked CROSS JOIN redrive_letters l ON l.id = asked.value JOIN redrive_events e ON e.position = l.position
LEFT JOIN redrive_edits d ON d.subscription = l.subscription AND d.position = l.position AND d.rev = l.edits

-- name: letter_counts_of
-- By the state that is shown (policy/letters.py, shown_state): what only waits behind another letter is not retrying.
SELECT CASE WHEN state = 'retrying' AND reason = 'behind_head' THEN 'waiting' ELSE state END AS shown, sum(n)
FROM redrive_letter_counts WHERE subscription = :subscription GROUP BY 1

-- name: letter_replay
UPDATE redrive_letters SET state = 'retrying', replaying = :pace, rev = rev + 1, due_at = :due_at, due_set_at = :now,
       delay = :due_at - :now, touched_at = :now, operation = :operation, auto_replays = auto_replays + :automatic
WHERE id = :id AND rev = :rev AND state = 'dead'

-- name: edits_latest
-- Of events that are still to come, as in a rebuild.
SELECT position, max(rev), data FROM redrive_edits WHERE subscription = :subscription AND position > :above GROUP BY position

-- ---------------------------------------------------------------- crash counting

-- name: inflight_charge
UPDATE redrive_inflight SET running = 0, charges = charges + (boot IS :boot), lost = lost + (boot IS :boot) * :lost
WHERE member = :member AND running = 1

-- ---------------------------------------------------------------- controls and audit

-- name: audit_last
SELECT hash FROM redrive_audit ORDER BY id DESC LIMIT 1

-- name: audit_add
INSERT INTO redrive_audit (at, who, action, subscription, target, reason, details, hash)
VALUES (:now, :who, :action, :subscription, :target, :reason, :details, :hash) RETURNING id

-- name: audit_highest
-- The highest number that was ever given to an audit row: what was cut off at the end shows by it.
SELECT seq FROM sqlite_sequence WHERE name = 'redrive_audit'

-- ---------------------------------------------------------------- ledger

-- name: ledger_journal_gaps
-- A letter whose last journal entry is not its state, or that has none.
SELECT l.position FROM redrive_letters l WHERE l.subscription = :subscription AND l.state IS NOT
  (SELECT j.state FROM redrive_journal j WHERE j.letter = l.id ORDER BY j.seq DESC LIMIT 1) ORDER BY l.position

-- name: ledger_step_positions
SELECT position FROM
  (SELECT position, state, lag(state) OVER (PARTITION BY letter ORDER BY seq) AS before FROM redrive_journal
   WHERE subscription = :subscription)
WHERE state = :state AND before IS :before ORDER BY position

-- name: ledger_misfiled
-- Letters in a lane that the subscription's order does not have.
SELECT l.position FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.subscription = :subscription AND l.state IN ('retrying', 'dead') AND l.lane IS NOT NULL AND
      CASE s.ordering WHEN 'key' THEN l.lane IS NOT l.key WHEN 'total' THEN l.lane <> '*' ELSE 1 END
ORDER BY l.position

-- name: ledger_strays
-- Events below the end of the last span that their own span does not know, and those that their key does not lead to.
SELECT position FROM redrive_events e WHERE log = :log AND position < (SELECT (max(span) + 1) * :size FROM redrive_spans)
  AND NOT EXISTS (SELECT 1 FROM redrive_spans s WHERE s.span = e.position / :size AND s.log = e.log AND s.type = e.type
                  AND s.low <= e.time_us AND s.high >= e.time_us)
UNION SELECT position FROM redrive_events e WHERE log = :log AND version > 0 AND position < (SELECT below FROM redrive_keyed)
  AND NOT EXISTS (SELECT 1 FROM redrive_keys k WHERE k.log = e.log AND k.key = e.key AND k.version = e.version
                  AND k.position = e.position) ORDER BY 1

-- name: ledger_receipts
-- Operations whose receipt is not what their letters say.
SELECT o.id FROM redrive_operations o LEFT JOIN
  (SELECT operation, count(*) AS n, sum(result IS 'applied') AS applied, sum(result IS 'failed') AS failed,
          sum(result IS 'skipped') AS skipped, sum(asked = 1 AND result IS NULL) AS waiting
   FROM redrive_operation_letters GROUP BY operation) l ON l.operation = o.id
WHERE o.selected <> coalesce(l.n, 0) OR o.applied <> coalesce(l.applied, 0) OR o.failed <> coalesce(l.failed, 0)
   OR o.skipped <> coalesce(l.skipped, 0) OR o.waiting <> coalesce(l.waiting, 0)
UNION SELECT operation FROM redrive_operation_letters WHERE operation NOT IN (SELECT id FROM redrive_operations)
ORDER BY 1

-- ---------------------------------------------------------------- selections, operations, notes

-- name: select_letters
-- What an operator means, a page at a time by id.
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = :state AND l.id > :after AND l.id <= :upto
  AND (:subscription IS NULL OR l.subscription = :subscription) AND (:type IS NULL OR l.type GLOB :type)
  AND (:key IS NULL OR l.key = :key) AND (:reason IS NULL OR l.reason = :reason)
  AND (:fingerprint IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || char(1114111)))
  AND (:error IS NULL OR instr(lower(l.error_type || ': ' || l.error_message), lower(:error)))
  AND (:since IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_letters_by_cause
-- The same, found by one fingerprint: a rare cause among a million letters.
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l INDEXED BY redrive_letters_cause JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = 'dead' AND l.fingerprint = :cause AND l.subscription = :of AND l.id > :after
  AND (:subscription IS NULL OR l.subscription = :subscription) AND (:type IS NULL OR l.type GLOB :type)
  AND (:key IS NULL OR l.key = :key) AND (:reason IS NULL OR l.reason = :reason)
  AND (:fingerprint IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || char(1114111)))
  AND (:error IS NULL OR instr(lower(l.error_type || ': ' || l.error_message), lower(:error)))
  AND (:since IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_letters_by_key
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l INDEXED BY redrive_letters_key JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = 'dead' AND l.key = :key AND l.id > :after
  AND (:subscription IS NULL OR l.subscription = :subscription) AND (:type IS NULL OR l.type GLOB :type)
  AND (:key IS NULL OR l.key = :key) AND (:reason IS NULL OR l.reason = :reason)
  AND (:fingerprint IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || char(1114111)))
  AND (:error IS NULL OR instr(lower(l.error_type || ': ' || l.error_message), lower(:error)))
  AND (:since IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_letters_by_time
-- The same, found by when they failed: a few among a million.
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l INDEXED BY redrive_letters_time JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = 'dead' AND l.id > :after AND coalesce(l.last_failed_at, l.parked_at) >= :from_time
  AND coalesce(l.last_failed_at, l.parked_at) < :to_time
  AND (:subscription IS NULL OR l.subscription = :subscription) AND (:type IS NULL OR l.type GLOB :type)
  AND (:key IS NULL OR l.key = :key) AND (:reason IS NULL OR l.reason = :reason)
  AND (:fingerprint IS NULL OR (l.fingerprint >= :fingerprint AND l.fingerprint < :fingerprint || char(1114111)))
  AND (:error IS NULL OR instr(lower(l.error_type || ': ' || l.error_message), lower(:error)))
  AND (:since IS NULL OR coalesce(l.last_failed_at, l.parked_at) >= :since)
  AND (:until IS NULL OR coalesce(l.last_failed_at, l.parked_at) < :until)
ORDER BY l.id LIMIT :limit

-- name: select_count_in_time
-- How many dead letters failed in a time, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM redrive_letters l INDEXED BY redrive_letters_time
WHERE l.state = 'dead' AND coalesce(l.last_failed_at, l.parked_at) >= :from_time
  AND coalesce(l.last_failed_at, l.parked_at) < :to_time LIMIT :limit)

-- name: select_first_in_time
-- The first letter above a number that failed in a time.
SELECT min(l.id) FROM redrive_letters l INDEXED BY redrive_letters_time
WHERE l.state = 'dead' AND coalesce(l.last_failed_at, l.parked_at) >= :from_time
  AND coalesce(l.last_failed_at, l.parked_at) < :to_time AND l.id > :after

-- name: sieve_get
SELECT bits FROM redrive_sieve WHERE letters = ?

-- name: sieve_put
INSERT INTO redrive_sieve VALUES (?, ?) ON CONFLICT (letters) DO UPDATE SET bits = excluded.bits

-- name: sieve_page
SELECT letters, bits FROM redrive_sieve WHERE letters >= ? ORDER BY letters LIMIT ?

-- name: select_by_event
-- Letters whose event id begins like this.
SELECT id FROM redrive_letters WHERE event_id >= :start AND event_id < :start || char(1114111) AND state <> 'superseded'
ORDER BY id LIMIT :limit

-- name: operation_add
INSERT INTO redrive_operations (action, who, reason, at, selected, rate) VALUES (:action, :who, :reason, :now, :selected, :rate)

-- name: operation_results
SELECT letter, result, why FROM redrive_operation_letters
WHERE operation = :id AND letter > :after AND (:result IS NULL OR result = :result) ORDER BY letter LIMIT :limit

-- name: operation_bad
-- Those that failed or were skipped, a few among many: the planner would read them all.
SELECT letter, result, why FROM redrive_operation_letters INDEXED BY redrive_operation_bad
WHERE operation = :id AND letter > :after AND result = :result AND result IN ('failed', 'skipped') ORDER BY letter LIMIT :limit

-- name: fingerprint_like
SELECT DISTINCT fingerprint FROM redrive_letter_counts WHERE fingerprint >= :start AND fingerprint < :start || char(1114111)

-- ---------------------------------------------------------------- doctor

-- name: doctor_version
SELECT sqlite_version()

-- name: doctor_journal_mode
PRAGMA journal_mode

-- name: doctor_synchronous
PRAGMA synchronous

-- name: foreign_writers
-- The user's triggers on redrive's tables: they run inside redrive's own statements, which the authorizer allows.
SELECT type, name || ' on ' || tbl_name FROM sqlite_master
WHERE type = 'trigger' AND tbl_name LIKE 'redrive!_%' ESCAPE '!' AND name NOT LIKE 'redrive!_%' ESCAPE '!' ORDER BY name

-- name: doctor_touch
-- With meta_drop in the same transaction nothing changes, and a page is written all the same: does the disk take it?
INSERT INTO redrive_meta VALUES ('doctor', 1)

-- name: doctor_pages
-- "ok", or the first page that makes no sense; every page is read.
PRAGMA quick_check(1)

-- name: doctor_newest
-- The latest time at which anything is known to have been written.
SELECT max(at) FROM (SELECT max(coalesce(settled_at, 0), lease_set_at) AS at FROM redrive_progress
                     UNION ALL SELECT at FROM (SELECT at FROM redrive_audit ORDER BY id DESC LIMIT 1))

-- name: doctor_old_dead
-- Among the first letters of a subscription that are dead now: those held since before a time.
SELECT coalesce(sum(parked_at < :before), 0), count(*) FROM (SELECT parked_at FROM redrive_letters
       WHERE state = 'dead' AND subscription = :subscription ORDER BY id LIMIT :limit)

-- name: doctor_late
-- Among the first letters that are to be retried: heads that were due before a time. Who waits behind another is not late.
SELECT coalesce(sum(due_at > 0 AND due_at < :before), 0), count(*) FROM
  (SELECT CASE WHEN k.oldest < l.position THEN 0 ELSE l.due_at END AS due_at
   FROM redrive_letters l LEFT JOIN redrive_lanes k ON k.subscription = l.subscription AND k.lane = l.lane
   WHERE l.state = 'retrying' AND l.subscription = :subscription ORDER BY l.id LIMIT :limit)

-- ---------------------------------------------------------------- prune

-- name: prune_superseded
-- One that was open when progress went back has emitted nothing: it is needed until its event is settled again.
SELECT id, position, type FROM redrive_letters l
WHERE state = 'superseded' AND subscription = :subscription AND id > :after AND touched_at < :before
  AND (resolved_by IS NOT :was_open OR (position <= :progress AND NOT EXISTS
       (SELECT 1 FROM redrive_letters o WHERE o.subscription = :subscription AND o.position = l.position
        AND o.state IN ('retrying', 'dead') AND o.state <> 'superseded')))
ORDER BY id LIMIT :limit

-- name: prune_attempt_count
SELECT count(*) FROM redrive_attempts WHERE letter IN (SELECT value FROM json_each(:ids))

-- name: prune_journal_count
SELECT count(*) FROM redrive_journal WHERE letter IN (SELECT value FROM json_each(:ids))

-- name: prune_groups
SELECT l.state, l.reason, l.type, l.fingerprint, count(*) FROM json_each(:ids) j JOIN redrive_letters l ON l.id = j.value
GROUP BY l.state, l.reason, l.type, l.fingerprint

-- name: prune_attempts
DELETE FROM redrive_attempts WHERE letter IN (SELECT value FROM json_each(:ids))

-- name: prune_journal
DELETE FROM redrive_journal WHERE letter IN (SELECT value FROM json_each(:ids))

-- name: prune_journal_but_last
DELETE FROM redrive_journal AS j WHERE letter IN (SELECT value FROM json_each(:ids))
  AND seq < (SELECT max(seq) FROM redrive_journal o WHERE o.letter = j.letter)

-- name: prune_letters
DELETE FROM redrive_letters WHERE id IN (SELECT value FROM json_each(:ids))

-- name: prune_letters_at
SELECT l.id, l.position, l.state, l.type FROM json_each(:positions) j
JOIN redrive_letters l ON l.subscription = :subscription AND l.position = j.value ORDER BY l.id

-- name: prune_edits_at
DELETE FROM redrive_edits WHERE subscription = :subscription AND position IN (SELECT value FROM json_each(:positions))

-- name: prune_events_count
-- Events that nobody needs: not the one with the highest version of its key, because versions count on from it.
WITH newest AS MATERIALIZED (SELECT key, max(version) AS version FROM redrive_tail
                             WHERE log = :log AND position <= :last AND version > 0 GROUP BY key)
SELECT count(*) FROM redrive_events e LEFT JOIN newest n ON n.key = e.key
WHERE e.log = :log AND e.position <= :upto AND (e.version IS NULL OR e.version < n.version OR EXISTS
      (SELECT 1 FROM redrive_keys k WHERE k.log = :log AND k.key = e.key AND k.version > e.version AND k.position <= :last))

-- name: prune_events_page
WITH newest AS MATERIALIZED (SELECT key, max(version) AS version FROM redrive_tail
                             WHERE log = :log AND position <= :last AND version > 0 GROUP BY key)
SELECT e.position FROM redrive_events e LEFT JOIN newest n ON n.key = e.key
WHERE e.log = :log AND e.position <= :upto AND (e.version IS NULL OR e.version < n.version OR EXISTS
      (SELECT 1 FROM redrive_keys k WHERE k.log = :log AND k.key = e.key AND k.version > e.version AND k.position <= :last))
ORDER BY e.position LIMIT :limit

-- name: prune_events_letters
WITH newest AS MATERIALIZED (SELECT key, max(version) AS version FROM redrive_tail
                             WHERE log = :log AND position <= :last AND version > 0 GROUP BY key)
SELECT count(*) FROM redrive_letters l JOIN redrive_events e ON e.position = l.position LEFT JOIN newest n ON n.key = e.key
WHERE l.subscription = :subscription AND l.state = 'discarded' AND l.position <= :upto AND e.log = :log
  AND (e.version IS NULL OR e.version < n.version OR EXISTS
      (SELECT 1 FROM redrive_keys k WHERE k.log = :log AND k.key = e.key AND k.version > e.version AND k.position <= :last))

-- name: prune_events_types
SELECT e.type, count(*) FROM json_each(:positions) j JOIN redrive_events e ON e.position = j.value
WHERE e.position > :above AND e.position <= :upto GROUP BY e.type

-- name: prune_events
DELETE FROM redrive_events WHERE position IN (SELECT value FROM json_each(:positions))

-- name: prune_spans
DELETE FROM redrive_spans WHERE span < :before AND NOT EXISTS
       (SELECT 1 FROM redrive_events WHERE position >= span * :size AND position < (span + 1) * :size)

-- name: prune_sieve
DELETE FROM redrive_sieve WHERE NOT EXISTS (SELECT 1 FROM redrive_letters l
       WHERE l.id >= redrive_sieve.letters * :letters AND l.id < (redrive_sieve.letters + 1) * :letters)

-- name: pruned_highest
-- The highest position up to which any log was pruned.
SELECT coalesce(max(value), 0) FROM redrive_meta WHERE name LIKE 'pruned log %'

-- ---------------------------------------------------------------- copying a store

-- name: copy_numbers
-- The highest number that was ever given to a row, by table: it is not given again. Where SQLite keeps none, it counts on
-- from the rows there are.
SELECT substr(name, 9), seq FROM sqlite_sequence WHERE name LIKE 'redrive_%' AND name <> 'redrive_audit'
UNION ALL SELECT 'logs', coalesce(max(id), 0) FROM redrive_logs
UNION ALL SELECT 'attempts', coalesce(max(id), 0) FROM redrive_attempts
UNION ALL SELECT 'scheduled', coalesce(max(seq), 0) FROM redrive_scheduled

-- name: paste_number
-- The next row of a table gets a number above this one. The table has no key but its rowid.
INSERT OR REPLACE INTO sqlite_sequence (rowid, name, seq)
SELECT (SELECT rowid FROM sqlite_sequence WHERE name = 'redrive_' || :name), 'redrive_' || :name, :highest
WHERE :name NOT IN ('logs', 'attempts', 'scheduled')

-- name: paste_audit
INSERT INTO redrive_audit (id, at, who, action, subscription, target, reason, details, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- ---------------------------------------------------------------- scheduled events

-- name: scheduled_add
-- Due times go by the store's clock: here it is the machine's, as the caller read it.
INSERT INTO redrive_scheduled (log, id, type, key, schema, time_us, headers, data, due_at, set_at, delay)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: scheduled_emit
-- An emission: one that is scheduled already, or has come due, is left as it is.
INSERT INTO redrive_scheduled (log, id, type, key, schema, time_us, headers, data, due_at, set_at, delay)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11
WHERE NOT EXISTS (SELECT 1 FROM redrive_events WHERE log = ?1 AND id = ?2)
ON CONFLICT DO NOTHING

-- ---------------------------------------------------------------- limits

-- name: buckets_forget
-- A full bucket and none at all are the same.
DELETE FROM redrive_buckets WHERE name > :low AND name < :high AND full_at <= :now

-- ---------------------------------------------------------------- metrics

-- name: metrics_bytes
-- How large the store is.
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()

-- ---------------------------------------------------------------- landing

-- name: event_land
-- Run with one VALUES row or several. A row whose id is taken is left out; the caller counts.
INSERT OR IGNORE INTO redrive_events (log, id, type, key, schema, time_us, headers, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: event_land_plain
INSERT OR IGNORE INTO redrive_events (log, id, type, key, schema, time_us, data)
VALUES (?, ?, ?, ?, 1, ?, ?)

-- name: events_known
SELECT id, type, key, schema, data FROM redrive_events WHERE log = :log AND id IN (SELECT value FROM json_each(:ids))

-- ---------------------------------------------------------------- mirrors of letters

-- name: journal_horizon
-- (transactions below this number have ended, those from this number on begin later). Here one writes at a time: what is
-- missing between two entries will not appear.
SELECT 1, 1

-- name: journal_behind
-- Those of these letters to which something happened above an entry.
SELECT DISTINCT letter FROM redrive_journal WHERE seq > :after AND letter IN (SELECT value FROM json_each(:ids))

-- ---------------------------------------------------------------- waking

-- name: pulse
-- What changes when a log grows, an event is scheduled before all others, an owner is asked for something, or a
-- subscription changes hands; not when an owner settles what it has, which is no news to anybody.
SELECT (SELECT max(position) FROM redrive_events), (SELECT min(due_at) FROM redrive_scheduled),
       (SELECT total(parked_version + epoch) FROM redrive_progress), (SELECT count(*) FROM redrive_progress WHERE owner IS NULL)
