-- Statements that every store runs in the same words, one named block each. Where a store needs other words, it has a
-- block of the same name in its own queries.sql. `redrive_x` is a table of ours, wherever the store keeps it.

-- name: meta_get
SELECT value FROM redrive_meta WHERE name = :name

-- ---------------------------------------------------------------- log

-- name: log_find
SELECT id FROM redrive_logs WHERE name = :name

-- name: log_add
INSERT INTO redrive_logs (name) VALUES (:name) ON CONFLICT DO NOTHING

-- name: log_all
SELECT id, name FROM redrive_logs ORDER BY name

-- name: emitted_above
-- Taking back what the same transaction has just appended to a log.
DELETE FROM redrive_events WHERE log = ? AND position > ?

-- name: event_by_id
SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events WHERE log = ? AND id = ?

-- name: event_by_position
SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events
WHERE position = ? AND log = ?

-- name: events_after
SELECT position, id, type, key, version, schema, time_us, headers, data FROM redrive_events
WHERE log = ? AND position > ? ORDER BY position LIMIT ?

-- name: marks_after
--- Which events come next, whatever they weigh.
SELECT position, id, key FROM redrive_events WHERE log = ? AND position > ? ORDER BY position LIMIT ?

-- name: log_last
SELECT coalesce(max(position), 0) FROM redrive_events WHERE log = ?

-- name: log_last_before
-- The highest position whose successors are all at or after the given time.
SELECT coalesce(min(position) - 1, (SELECT coalesce(max(position), 0) FROM redrive_events WHERE log = :log))
FROM redrive_events WHERE log = :log AND time_us >= :time_us

-- name: event_anchor
-- The last event at or below a position: what progress remembers to recognise the log by.
SELECT position, id FROM redrive_events WHERE log = ? AND position <= ? ORDER BY position DESC LIMIT 1

-- name: events_count
SELECT type, count(*) FROM redrive_events WHERE log = :log AND position > :above AND position <= :upto GROUP BY type

-- name: lag_count
SELECT count(*) FROM (SELECT 1 FROM redrive_events WHERE log = :log AND position > :above LIMIT :limit) AS above

-- name: lag_oldest
SELECT time_us FROM redrive_events WHERE log = :log AND position > :above ORDER BY position LIMIT 1

-- name: events_between
SELECT count(*) FROM (SELECT 1 FROM redrive_events WHERE log = :log AND position > :above AND position < :below LIMIT :limit) AS found

-- name: events_by_prefix
-- The first ids of a log at or after a text: those that begin with it come first.
SELECT position, id FROM redrive_events WHERE log = :log AND id >= :start ORDER BY id LIMIT :limit

-- ---------------------------------------------------------------- subscriptions and progress

-- name: subscription_find
SELECT id, name, kind, source, ordering FROM redrive_subscriptions WHERE name = :name

-- name: subscription_all
SELECT id, name, kind, source, ordering FROM redrive_subscriptions ORDER BY name

-- name: subscription_add
INSERT INTO redrive_subscriptions (name, kind, source, ordering, created_at)
VALUES (:name, :kind, :source, :ordering, :now) RETURNING id

-- name: subscription_rename
UPDATE redrive_subscriptions SET name = :new WHERE name = :old

-- name: subscription_reorder
UPDATE redrive_subscriptions SET ordering = :ordering, kind = :kind WHERE id = :subscription

-- name: declaration_get
SELECT ordering, version, key_function, declared_tables, declared_by_operator, reserved_by, reserved_until,
       (SELECT count(*) FROM redrive_progress p WHERE p.subscription = s.id)
FROM redrive_subscriptions s WHERE id = :subscription

-- name: declaration_set
UPDATE redrive_subscriptions SET version = :version, key_function = :key, declared_tables = :tables,
       declared_by_operator = :by_operator
WHERE id = :subscription

-- name: reservation_set
UPDATE redrive_subscriptions SET reserved_by = :owner, reserved_until = :until WHERE id = :subscription

-- name: reservation_renew
-- No row: the rebuild is done, or the reservation is another process's.
UPDATE redrive_subscriptions SET reserved_until = :until WHERE id = :subscription AND reserved_by = :owner
  AND EXISTS (SELECT 1 FROM redrive_progress p WHERE p.subscription = :subscription AND p.position < p.quiet_until)

-- name: reservation_end
UPDATE redrive_subscriptions SET reserved_by = NULL, reserved_until = 0 WHERE id = :subscription AND reserved_by = :owner

-- name: reservations_end
-- A process that stops reserves nothing any more.
UPDATE redrive_subscriptions SET reserved_by = NULL, reserved_until = 0 WHERE reserved_by = :owner

-- name: progress_add
INSERT INTO redrive_progress (member, subscription, position, anchor, started_from)
VALUES (:member, :subscription, :position, :anchor, :position)

-- name: progress_get
SELECT member, subscription, position, anchor, epoch, parked_version, applied, ignored, started_from, quiet_until, paused, halted,
       owner, lease_until, lease_set_at, unclean, boot, settled_at, last_type, last_time_us
FROM redrive_progress WHERE member = ?

-- name: progress_of
SELECT member, subscription, position, anchor, epoch, parked_version, applied, ignored, started_from, quiet_until, paused, halted,
       owner, lease_until, lease_set_at, unclean, boot, settled_at, last_type, last_time_us
FROM redrive_progress WHERE subscription = ? ORDER BY member

-- name: lock_subscription
-- Operators lock the subscription first, then the letter, and tell the owner that its cache is stale.
UPDATE redrive_progress SET parked_version = parked_version + 1 WHERE subscription = :subscription

-- name: change_begin
-- This version has a list of changed letters; without this row the owner reads all open letters.
INSERT INTO redrive_changes (subscription, version, letter, lane)
SELECT subscription, parked_version, 0, NULL FROM redrive_progress WHERE member = :subscription ON CONFLICT DO NOTHING

-- name: change_add
-- A letter that the operator's transaction changes, and its lane.
INSERT INTO redrive_changes (subscription, version, letter, lane)
SELECT subscription, parked_version, ?, ? FROM redrive_progress WHERE member = ? ON CONFLICT DO NOTHING

-- name: change_count
-- How many letters are listed between two versions, and how many of these versions have a complete list.
SELECT count(*), CAST(coalesce(sum(CASE WHEN letter = 0 THEN 1 ELSE 0 END), 0) AS bigint) FROM redrive_changes
WHERE subscription = ? AND version > ? AND version <= ?

-- name: changed_loose
-- Changed letters in lanes of their own; the second number is NULL if one does not wait for its due time.
SELECT c.letter, l.position, l.id, l.state, l.due_at, l.due_set_at, l.delay, l.rev, l.attempts, l.replaying, l.edits,
       coalesce(l.key, l.event_id)
FROM redrive_changes c LEFT JOIN redrive_letters l ON l.id = c.letter AND l.lane IS NULL AND l.state = 'retrying'
WHERE c.subscription = ? AND c.version > ? AND c.version <= ? AND c.letter > 0 AND c.lane IS NULL

-- name: changes_forget
-- The oldest versions up to one that every owner has read, about as many rows at a time as the limit says.
DELETE FROM redrive_changes WHERE subscription = :subscription AND version <= :upto AND version <= coalesce(
    (SELECT version FROM redrive_changes WHERE subscription = :subscription ORDER BY version LIMIT 1 OFFSET :limit), :upto)

-- name: lease_release
UPDATE redrive_progress SET owner = NULL, lease_until = 0, unclean = 0 WHERE member = :member AND epoch = :epoch

-- name: lease_leave
-- Nobody is suspected of a crash, but a function still runs: it stays ours until we are gone, or it lapses.
UPDATE redrive_progress SET unclean = 0 WHERE member = :member AND epoch = :epoch

-- name: worker_leave
DELETE FROM redrive_workers WHERE owner = :owner

-- name: workers_forget
DELETE FROM redrive_workers WHERE seen_at < :before

-- name: workers_all
SELECT owner, version, started_at, seen_at, runs, waits FROM redrive_workers ORDER BY started_at, owner

-- name: members_owned
-- Who owns what, and since when.
SELECT s.name, p.member, p.owner, p.taken_at, p.lease_until, p.position, p.epoch,
       (SELECT count(*) FROM redrive_progress o WHERE o.subscription = p.subscription)
FROM redrive_progress p JOIN redrive_subscriptions s ON s.id = p.subscription
WHERE p.owner IS NOT NULL ORDER BY s.name, p.member

-- name: halted_set
UPDATE redrive_progress SET halted = :reason WHERE member = :member AND epoch = :epoch

-- name: paused_set
UPDATE redrive_progress SET paused = :paused WHERE subscription = :subscription

-- name: progress_skip
-- Forward over events that are given up: the counters stay, the former owner is fenced.
UPDATE redrive_progress SET position = :position, anchor = :anchor, epoch = epoch + 1, parked_version = parked_version + 1,
       owner = NULL, lease_until = 0, unclean = 0, halted = NULL
WHERE subscription = :subscription

-- name: members_drop
DELETE FROM redrive_progress WHERE subscription = :subscription

-- name: member_begin
-- A partition after a change of their number: epochs never restart, and the first keeps the books of all.
UPDATE redrive_progress SET epoch = :epoch, parked_version = :parked_version, applied = :applied, ignored = :ignored,
       started_from = :started_from, quiet_until = :quiet_until, paused = :paused, settled_at = :settled_at,
       last_type = :last_type, last_time_us = :last_time_us
WHERE member = :member

-- name: inflight_unsuspected
DELETE FROM redrive_inflight WHERE member = :member AND charges = 0 AND running = 0

-- name: inflight_forget
-- Who was settled without running alone, as an operator can, is suspected of nothing.
DELETE FROM redrive_inflight WHERE member = :member
  AND (position <= :progress OR position IN (SELECT position FROM redrive_done WHERE subscription = :subscription))
  AND NOT EXISTS (SELECT 1 FROM redrive_letters l WHERE l.subscription = :subscription
                  AND l.position = redrive_inflight.position AND l.state IN ('retrying', 'dead'))

-- name: inflight_drop
DELETE FROM redrive_inflight WHERE member & 4294967295 = :subscription

-- name: epoch_bump
UPDATE redrive_progress SET epoch = epoch + 1, parked_version = parked_version + 1, owner = NULL, lease_until = 0, unclean = 0
WHERE subscription = :subscription

-- name: done_chunks
SELECT chunk, marks FROM redrive_done_chunks WHERE member = ? AND chunk BETWEEN ? AND ? ORDER BY chunk

-- name: done_chunk
SELECT marks FROM redrive_done_chunks WHERE member = ? AND chunk = ?

-- name: done_put
INSERT INTO redrive_done_chunks VALUES (?, ?, ?) ON CONFLICT (member, chunk) DO UPDATE SET marks = excluded.marks

-- name: done_drop
DELETE FROM redrive_done_chunks WHERE member = ? AND chunk < ?

-- name: done_members
SELECT DISTINCT member FROM redrive_done_chunks WHERE member & 4294967295 = ? ORDER BY member

-- name: filter_add
INSERT INTO redrive_filters VALUES (:subscription, :from_position, :types)
ON CONFLICT (subscription, from_position) DO UPDATE SET types = excluded.types

-- name: filter_all
SELECT from_position, types FROM redrive_filters WHERE subscription = :subscription ORDER BY from_position

-- name: filter_clear
DELETE FROM redrive_filters WHERE subscription = :subscription AND from_position >= :above

-- name: range_add
INSERT INTO redrive_ranges VALUES (:subscription, :from_position, :to_position, :discarded, :audit)

-- name: range_all
SELECT from_position, to_position, discarded, audit FROM redrive_ranges WHERE subscription = :subscription ORDER BY from_position

-- name: range_cut
-- A range that was skipped is to be read again above a position.
DELETE FROM redrive_ranges WHERE subscription = :subscription AND from_position >= :above

-- name: range_set
UPDATE redrive_ranges SET to_position = :to_position, discarded = :discarded
WHERE subscription = :subscription AND from_position = :from_position

-- name: state_any
-- Has the subscription ever kept keyed state, here or elsewhere?
SELECT 1 FROM redrive_meta WHERE name IN ('state ' || :subscription, 'states:' || :subscription) LIMIT 1

-- name: table_all
SELECT name, columns FROM redrive_tables WHERE subscription = :subscription ORDER BY name

-- name: table_add
INSERT INTO redrive_tables VALUES (:name, :subscription, :columns) ON CONFLICT (name) DO UPDATE SET columns = excluded.columns

-- name: table_drop
DELETE FROM redrive_tables WHERE name = :name

-- ---------------------------------------------------------------- letters

-- name: letter_retry
-- One row or none: none means that an operator was faster, and the attempt's effects are dropped.
UPDATE redrive_letters SET state = :state, reason = :reason, rev = rev + 1, attempts = :attempts, replaying = 0,
       due_at = :due_at, due_set_at = :now, delay = :delay, first_failed_at = coalesce(first_failed_at, :now),
       last_failed_at = :now, error_type = :error_type, error_message = :error_message, fingerprint = :fingerprint,
       touched_at = :now, resolved_by = :resolved_by, dependency = :dependency
WHERE id = :id AND rev = :rev AND state = 'retrying'

-- name: letter_again
-- The same for a letter that stays `retrying`: its state is not written, so the indexes on it are not either.
UPDATE redrive_letters SET reason = :reason, rev = rev + 1, attempts = :attempts, replaying = 0,
       due_at = :due_at, due_set_at = :now, delay = :delay, first_failed_at = coalesce(first_failed_at, :now),
       last_failed_at = :now, error_type = :error_type, error_message = :error_message, fingerprint = :fingerprint,
       touched_at = :now, dependency = :dependency
WHERE id = :id AND rev = :rev AND state = 'retrying'

-- name: letter_settle
UPDATE redrive_letters SET state = :state, rev = rev + 1, attempts = :attempts, replaying = 0, touched_at = :now,
       resolved_by = :resolved_by
WHERE id = :id AND rev = :rev AND state = 'retrying'

-- name: attempts_of
SELECT attempt, at, outcome, error_type, error_message, traceback, fingerprint, worker FROM redrive_attempts
WHERE letter = :letter ORDER BY id

-- name: lane_head
SELECT lane, position, id, state, due_at, due_set_at, delay, rev, attempts, replaying, edits, 0
FROM redrive_letters WHERE subscription = ? AND lane = ? AND state IN ('retrying', 'dead') ORDER BY position LIMIT 1

-- name: loose_letters
-- Letters in a lane of their own never wait behind another; only those with a due time matter to the owner.
SELECT lane, position, id, state, due_at, due_set_at, delay, rev, attempts, replaying, edits, 1, coalesce(key, event_id)
FROM redrive_letters WHERE subscription = ? AND lane IS NULL AND state = 'retrying'

-- name: letter_event
-- What was refused (schema 0) is an event once it was edited.
SELECT e.position, e.id, e.type, e.key, e.version,
       CASE WHEN e.schema = 0 AND d.data IS NOT NULL THEN 1 ELSE e.schema END, e.time_us, e.headers, coalesce(d.data, e.data)
FROM redrive_letters l JOIN redrive_events e ON e.position = l.position
LEFT JOIN redrive_edits d ON d.subscription = l.subscription AND d.position = l.position AND d.rev = l.edits
WHERE l.id = ?

-- name: letter_get
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription WHERE l.id = :id

-- name: letters_page
-- A state that is cast is no longer compared with those of partial indexes, for which SQLite would plan anew each time.
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = CAST(:state AS TEXT) AND l.id > :after ORDER BY l.id LIMIT :limit

-- name: letters_page_of
-- Cast as in letters_page.
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.state = CAST(:state AS TEXT) AND l.subscription = :subscription AND l.id > :after ORDER BY l.id LIMIT :limit

-- name: letters_waiting
-- How many open letters wait behind this one: behind a head the rest of its lane, behind another they are counted.
SELECT coalesce(
  (SELECT n - 1 FROM redrive_lanes WHERE subscription = :subscription AND lane = :lane AND oldest = :position),
  (SELECT count(*) FROM redrive_letters
   WHERE subscription = :subscription AND lane = :lane AND position > :position AND state IN ('retrying', 'dead')))

-- name: letter_counts
SELECT s.name, c.state, c.reason, c.type, c.fingerprint, c.n FROM redrive_letter_counts c
JOIN redrive_subscriptions s ON s.id = c.subscription

-- name: letter_open_first
-- The open letter of each stored state that has been open longest: its position, and since when it is held.
SELECT position, parked_at FROM (SELECT position, parked_at FROM redrive_letters
  WHERE state = 'retrying' AND subscription = :subscription ORDER BY id LIMIT 1) AS retrying
UNION ALL
SELECT position, parked_at FROM (SELECT position, parked_at FROM redrive_letters
  WHERE state = 'dead' AND subscription = :subscription ORDER BY id LIMIT 1) AS dead

-- name: open_letters
SELECT id, position, lane, key, type, event_id, edits FROM redrive_letters
WHERE subscription = :subscription AND state IN ('retrying', 'dead') ORDER BY position

-- name: letters_with_events
-- Open letters in lanes above a position, each with its event as it was appended.
SELECT l.id, l.lane, e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data
FROM redrive_letters l JOIN redrive_events e ON e.position = l.position
WHERE l.subscription = ?1 AND e.log = ?2 AND l.position > ?3 AND l.lane IS NOT NULL
  AND l.state IN ('retrying', 'dead') AND l.state <> 'superseded' ORDER BY l.position LIMIT ?4

-- name: letters_misplaced
-- The same, of letters whose lane is not the key of their event.
SELECT l.id, l.lane, e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data
FROM redrive_letters l JOIN redrive_events e ON e.position = l.position
WHERE l.subscription = ?1 AND e.log = ?2 AND l.position > ?3 AND l.lane IS NOT NULL
  AND l.state IN ('retrying', 'dead') AND l.state <> 'superseded' AND (e.key IS NULL OR e.key <> l.lane)
ORDER BY l.position LIMIT ?4

-- name: letter_unreplay
-- A replay that has not run yet is taken back; rev tells an owner that runs it this moment.
UPDATE redrive_letters SET state = 'dead', replaying = 0, rev = rev + 1, touched_at = :now
WHERE id = :id AND operation = :operation AND state = 'retrying' AND replaying > 0

-- name: letter_discard
UPDATE redrive_letters SET state = 'discarded', rev = rev + 1, touched_at = :now, resolved_by = :resolved_by
WHERE id = :id AND rev = :rev AND state IN ('retrying', 'dead')

-- name: letter_edit
UPDATE redrive_letters SET edits = :edits, rev = rev + 1, touched_at = :now
WHERE id = :id AND rev = :rev AND state IN ('retrying', 'dead')

-- name: letter_reopen
UPDATE redrive_letters SET state = 'retrying', replaying = 1, rev = rev + 1, due_at = :now, due_set_at = :now, delay = 0,
       touched_at = :now, resolved_by = NULL WHERE id = :id AND rev = :rev AND state = 'discarded'

-- name: letter_rekey
UPDATE redrive_letters SET lane = :lane, key = :key, rev = rev + 1, touched_at = :now WHERE id = :id

-- name: letter_due
-- Another time for the next attempt. It is not written when the letter changed since it was looked at.
UPDATE redrive_letters SET due_at = :due_at, due_set_at = :now, delay = :delay, rev = rev + 1, touched_at = :now
WHERE id = :id AND rev = :rev AND state = 'retrying'

-- name: letters_held_due
-- After a change of keys the holds of the new ones decide: their owner keeps back what is due.
UPDATE redrive_letters SET due_at = :now, due_set_at = :now, delay = 0, rev = rev + 1, touched_at = :now
WHERE subscription = :subscription AND state = 'retrying' AND reason = 'held'

-- name: settled_after
-- Later events that are settled other than by being discarded or held: an earlier one of their lane must stay closed.
-- The caller knows lanes and filters.
SELECT e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data FROM redrive_events e
WHERE e.log = :log AND e.position > :position
  AND (e.position <= :progress OR e.position IN (SELECT position FROM redrive_done WHERE subscription = :subscription))
  AND NOT EXISTS (SELECT 1 FROM redrive_letters l WHERE l.subscription = :subscription AND l.position = e.position
                  AND l.state IN ('retrying', 'dead', 'discarded'))
ORDER BY e.position LIMIT :limit

-- name: settled_after_of_key
-- The same where lanes are the events' own keys.
SELECT e.position, e.id, e.type, e.key, e.version, e.schema, e.time_us, e.headers, e.data FROM redrive_events e
WHERE e.log = :log AND e.key = :key AND e.position > :position
  AND (e.position <= :progress OR e.position IN (SELECT position FROM redrive_done WHERE subscription = :subscription))
  AND NOT EXISTS (SELECT 1 FROM redrive_letters l WHERE l.subscription = :subscription AND l.position = e.position
                  AND l.state IN ('retrying', 'dead', 'discarded'))
ORDER BY e.position LIMIT :limit

-- name: letters_supersede
-- Their events come round again. What an operator or a rule discarded stays discarded; what the function itself
-- ignored is asked again. Who was still open is remembered: its emissions were never made.
UPDATE redrive_letters SET state = 'superseded', rev = rev + 1, touched_at = :now,
       resolved_by = CASE WHEN state IN ('retrying', 'dead') THEN :was_open ELSE :was_settled END
WHERE subscription = :subscription AND position > :above
  AND (state IN ('retrying', 'dead', 'applied') OR (state = 'discarded' AND resolved_by IN ('ignore verdict', 'replay')))

-- name: seek_superseded
-- How many letters going back would supersede: the same condition as letters_supersede.
SELECT count(*) FROM redrive_letters WHERE subscription = :subscription AND position > :above
  AND (state IN ('retrying', 'dead', 'applied') OR (state = 'discarded' AND resolved_by IN ('ignore verdict', 'replay')))

-- name: seek_kept
-- What stays discarded when progress goes back, by type.
SELECT type, count(*) FROM redrive_letters WHERE subscription = :subscription AND position > :above AND position <= :upto
  AND state = 'discarded' AND (resolved_by IS NULL OR resolved_by NOT IN ('ignore verdict', 'replay')) GROUP BY type

-- name: letters_unheard
-- Letters that were open when progress was taken back, or were discarded before it and may be reopened (those up to a
-- number): not quiet, whatever quiet_until says.
SELECT id, position FROM redrive_letters l WHERE subscription = :subscription
  AND ((state = 'superseded' AND resolved_by = :was_open)
       OR (state <> 'superseded' AND id <= :upto
           AND EXISTS (SELECT 1 FROM redrive_journal j WHERE j.letter = l.id AND j.state = 'discarded')))

-- name: progress_unquiet
-- Above this position emissions are made again; those that were made before are known by their ids.
UPDATE redrive_progress SET quiet_until = :position WHERE subscription = :subscription AND quiet_until > :position

-- name: letters_heard
-- They have been settled since, so their emissions were made; not those that a newer letter holds open.
UPDATE redrive_letters SET resolved_by = :was_settled
WHERE subscription = :subscription AND state = 'superseded' AND resolved_by = :was_open
  AND (position <= :progress OR position IN (SELECT position FROM redrive_done WHERE subscription = :subscription))
  AND position NOT IN (SELECT position FROM redrive_letters
                       WHERE subscription = :subscription AND state IN ('retrying', 'dead'))

-- name: letters_passed
-- Open and discarded letters of events that a rebuild passed, which may have emitted before it.
SELECT id, state, position, type FROM redrive_letters
WHERE subscription = :subscription AND position <= :quiet_until AND state IN ('retrying', 'dead', 'discarded')

-- name: letter_heard
-- The event of this letter was applied, and emitted, before the rebuild in which it failed.
UPDATE redrive_letters SET resolved_by = :was_settled WHERE id = :id AND state = 'superseded' AND resolved_by = :was_open

-- name: letter_newest
SELECT coalesce(max(id), 0) FROM redrive_letters

-- name: letters_homeless
-- Open letters whose event the log no longer holds.
SELECT l.id, l.position FROM redrive_letters l
WHERE l.subscription = :subscription AND l.state IN ('retrying', 'dead') AND NOT EXISTS
      (SELECT 1 FROM redrive_events e WHERE e.position = l.position AND e.log = :log AND e.id = l.event_id)
ORDER BY l.position

-- name: letters_discarded
SELECT position FROM redrive_letters
WHERE subscription = :subscription AND state = 'discarded' AND position > :above ORDER BY position

-- name: events_of_type
SELECT position FROM redrive_events
WHERE log = :log AND position > :above AND position <= :upto AND type = :type ORDER BY position LIMIT :limit

-- name: edit_add
INSERT INTO redrive_edits VALUES (:subscription, :position, :rev, :data, :audit)

-- name: edits_of
SELECT rev, data, audit FROM redrive_edits WHERE subscription = :subscription AND position = :position ORDER BY rev

-- name: lanes_worst
-- Lanes by how many open letters they hold, most first, then by how long, after one with so many that is so old.
SELECT lane, oldest, n FROM
  (SELECT lane, oldest, n FROM redrive_lanes WHERE subscription = :subscription AND n = :size AND oldest > :position
   ORDER BY oldest LIMIT :limit) AS as_full
UNION ALL SELECT lane, oldest, n FROM
  (SELECT lane, oldest, n FROM redrive_lanes WHERE subscription = :subscription AND n < :size
   ORDER BY n DESC, oldest LIMIT :limit) AS less_full

-- name: lane_of
SELECT lane, oldest, n FROM redrive_lanes WHERE subscription = :subscription AND lane = :lane

-- name: select_newest
-- Dead letters, the one that failed last first.
SELECT id FROM redrive_letters WHERE state = 'dead' ORDER BY coalesce(last_failed_at, parked_at) DESC LIMIT :limit

-- name: lane_ahead
SELECT count(*) FROM redrive_letters
WHERE subscription = :subscription AND lane = :lane AND position < :position AND state IN ('retrying', 'dead')

-- name: letter_at
SELECT id FROM redrive_letters WHERE subscription = :subscription AND position = :position AND state <> 'superseded'

-- name: letters_were_at
-- Letters that an event had before progress was taken back.
SELECT id FROM redrive_letters
WHERE event_id = :event AND subscription = :subscription AND position = :position AND state = 'superseded' ORDER BY id

-- ---------------------------------------------------------------- crash counting

-- name: inflight_start
INSERT INTO redrive_inflight (member, position, running, charges, boot) VALUES (:member, :position, 1, 0, :boot)
ON CONFLICT (member, position) DO UPDATE SET running = 1, boot = excluded.boot

-- name: inflight_clear
DELETE FROM redrive_inflight WHERE member = :member AND position = :position

-- name: inflight_excuse
UPDATE redrive_inflight SET running = 0 WHERE member = :member

-- name: inflight_all
SELECT position, charges, lost FROM redrive_inflight WHERE member = :member

-- ---------------------------------------------------------------- keyed state

-- name: state_get
SELECT version, data FROM redrive_state WHERE subscription = ? AND key = ?

-- name: state_add
-- The version is the position of the event that wrote: it never comes back, not even after the state was deleted.
INSERT INTO redrive_state VALUES (:subscription, :key, :position, :data) ON CONFLICT DO NOTHING

-- name: state_save
UPDATE redrive_state SET version = :position, data = :data
WHERE subscription = :subscription AND key = :key AND version = :version

-- name: state_save_many
UPDATE redrive_state SET version = ?, data = ? WHERE subscription = ? AND key = ? AND version = ?

-- name: state_add_many
INSERT INTO redrive_state VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: state_drop
DELETE FROM redrive_state WHERE subscription = :subscription AND key = :key AND version = :version

-- name: state_clear
DELETE FROM redrive_state WHERE subscription = :subscription

-- name: state_near
-- Keys that have state, from a text on.
SELECT key FROM redrive_state WHERE subscription = :subscription AND key >= :start ORDER BY key LIMIT :limit

-- ---------------------------------------------------------------- controls and audit

-- name: control_add
INSERT INTO redrive_controls (subscription, verb, letter, rev, who, reason, at)
VALUES (:subscription, :verb, :letter, :rev, :who, :reason, :now)

-- name: control_all
SELECT id, verb, letter, rev, who, reason FROM redrive_controls WHERE subscription = :subscription ORDER BY id

-- name: control_drop
DELETE FROM redrive_controls WHERE id = :id

-- name: control_clear
DELETE FROM redrive_controls WHERE subscription = :subscription

-- ---------------------------------------------------------------- holds

-- name: holds_of
-- The owner reads them whenever its letters were changed by somebody else.
SELECT id, subscription, pattern, is_prefix, until, set_at, who, reason FROM redrive_holds
WHERE subscription IN (0, :subscription) ORDER BY id

-- name: holds_all
SELECT id, subscription, pattern, is_prefix, until, set_at, who, reason FROM redrive_holds ORDER BY id

-- name: hold_get
SELECT id, subscription, pattern, is_prefix, until, set_at, who, reason FROM redrive_holds
WHERE subscription = :subscription AND is_prefix = :is_prefix AND pattern = :pattern

-- name: hold_set
-- A key is held once by each subscription: a second hold changes the first.
INSERT INTO redrive_holds (subscription, pattern, is_prefix, until, set_at, who, reason)
VALUES (:subscription, :pattern, :is_prefix, :until, :set_at, :who, :reason)
ON CONFLICT (subscription, is_prefix, pattern) DO UPDATE
SET until = excluded.until, set_at = excluded.set_at, who = excluded.who, reason = excluded.reason

-- name: hold_drop
DELETE FROM redrive_holds WHERE id = :id

-- name: holds_ended_drop
-- One that was set in what is the future again starts its time over: it has not ended.
DELETE FROM redrive_holds WHERE until <= :now AND set_at <= :now

-- name: letters_held
SELECT id, key, due_at, rev, lane FROM redrive_letters
WHERE subscription = :subscription AND state = 'retrying' AND reason = 'held' AND id > :after ORDER BY id LIMIT :limit

-- name: audit_all
SELECT id, at, who, action, subscription, target, reason, details, hash FROM redrive_audit WHERE id > :after ORDER BY id LIMIT :limit

-- name: audit_of_target
SELECT id, at, who, action, reason, details FROM redrive_audit
WHERE subscription = :subscription AND target = :target ORDER BY id

-- name: audit_get
SELECT at, who, action, reason FROM redrive_audit WHERE id = :id

-- ---------------------------------------------------------------- ledger

-- name: ledger_unsettled_letters
-- Letters that claim a position which progress has not settled: at most one fate each, and none before its time.
SELECT l.position FROM redrive_letters l WHERE l.subscription = :subscription AND l.state <> 'superseded'
  AND l.position > (SELECT min(position) FROM redrive_progress WHERE subscription = :subscription)
  AND l.position NOT IN (SELECT position FROM redrive_done WHERE subscription = :subscription)
ORDER BY l.position

-- name: ledger_stale_done
-- Of several partitions, one keeps its marks until it settles something again: then the slowest may be far ahead.
SELECT d.position FROM redrive_done d WHERE d.subscription = :subscription
  AND d.position <= (SELECT min(position) FROM redrive_progress WHERE subscription = :subscription)
  AND 1 = (SELECT count(*) FROM redrive_progress WHERE subscription = :subscription) ORDER BY d.position

-- name: ledger_done_events
SELECT e.position, e.type FROM redrive_done d JOIN redrive_events e ON e.position = d.position AND e.log = :log
WHERE d.subscription = :subscription AND d.position > :above ORDER BY d.position

-- name: ledger_empty_done
-- Done rows without an event.
SELECT d.position FROM redrive_done d WHERE d.subscription = :subscription
  AND d.position > (SELECT min(position) FROM redrive_progress WHERE subscription = :subscription) AND NOT EXISTS
       (SELECT 1 FROM redrive_events e WHERE e.position = d.position AND e.log = :log) ORDER BY d.position

-- name: ledger_letters
-- Fates by letter in a range of positions.
SELECT state, type, count(*) FROM redrive_letters
WHERE subscription = :subscription AND position > :above AND position <= :upto AND state <> 'superseded' GROUP BY state, type

-- name: ledger_letters_of_type
SELECT position FROM redrive_letters
WHERE subscription = :subscription AND position > :above AND position <= :upto AND state = :state AND type = :type
ORDER BY position

-- name: ledger_letters_in
SELECT position FROM redrive_letters
WHERE subscription = :subscription AND position > :above AND position <= :upto AND state <> 'superseded' ORDER BY position

-- name: ledger_doubled_letters
SELECT position FROM redrive_letters WHERE subscription = :subscription AND state <> 'superseded'
GROUP BY position HAVING count(*) > 1

-- name: ledger_missing_letters
-- The journal knows a letter that is not there.
SELECT DISTINCT j.position FROM redrive_journal j
WHERE j.subscription = :subscription AND NOT EXISTS (SELECT 1 FROM redrive_letters l WHERE l.id = j.letter)
ORDER BY j.position

-- name: ledger_steps
-- Which state followed which, how often.
SELECT before, state, count(*) FROM
  (SELECT state, lag(state) OVER (PARTITION BY letter ORDER BY seq) AS before FROM redrive_journal
   WHERE subscription = :subscription) AS steps
GROUP BY before, state

-- name: ledger_unexplained
-- Dead letters without a single attempt in their history.
SELECT l.position FROM redrive_letters l WHERE l.subscription = :subscription AND l.state = 'dead'
  AND NOT EXISTS (SELECT 1 FROM redrive_attempts a WHERE a.letter = l.id) ORDER BY l.position

-- name: ledger_unsigned_discards
SELECT position FROM redrive_letters WHERE subscription = :subscription AND state = 'discarded' AND resolved_by IS NULL
ORDER BY position

-- name: ledger_lost_edits
-- Letters that refer to an edit which is not there.
SELECT l.position FROM redrive_letters l WHERE l.subscription = :subscription AND l.state <> 'superseded' AND l.edits > 0
  AND NOT EXISTS (SELECT 1 FROM redrive_edits d WHERE d.subscription = l.subscription AND d.position = l.position
                  AND d.rev = l.edits) ORDER BY l.position

-- name: ledger_unaudited
-- Edits and skipped ranges that no audit row accounts for.
SELECT position FROM redrive_edits WHERE subscription = :subscription AND audit NOT IN (SELECT id FROM redrive_audit)
UNION SELECT from_position + 1 FROM redrive_ranges
WHERE subscription = :subscription AND audit NOT IN (SELECT id FROM redrive_audit) ORDER BY 1

-- name: ledger_overtaken
-- An applied event of a lane above an open letter of the same lane.
SELECT a.position FROM redrive_letters a WHERE a.subscription = :subscription AND a.state = 'applied' AND EXISTS
       (SELECT 1 FROM redrive_letters o WHERE o.subscription = a.subscription AND o.lane = a.lane
        AND o.state IN ('retrying', 'dead') AND o.position < a.position) ORDER BY a.position

-- name: ledger_overtaken_at_intake
-- Settled events of a parked key that never were letters, where lanes are the events' own keys.
SELECT e.position, e.type FROM
  (SELECT lane, min(position) AS position FROM redrive_letters
   WHERE subscription = :subscription AND lane IS NOT NULL AND state IN ('retrying', 'dead') GROUP BY lane) h
JOIN redrive_events e ON e.log = :log AND e.key = h.lane AND e.position > h.position
WHERE (e.position <= :progress OR e.position IN (SELECT position FROM redrive_done WHERE subscription = :subscription))
  AND NOT EXISTS (SELECT 1 FROM redrive_letters l WHERE l.subscription = :subscription AND l.position = e.position
                  AND l.state <> 'superseded') ORDER BY e.position

-- name: ledger_passed_total
-- The same in total order: settled events above the lowest open letter that never were letters.
SELECT e.position, e.type FROM redrive_events e
WHERE e.log = :log AND e.position > (SELECT min(position) FROM redrive_letters
      WHERE subscription = :subscription AND lane IS NOT NULL AND state IN ('retrying', 'dead'))
  AND (e.position <= :progress OR e.position IN (SELECT position FROM redrive_done WHERE subscription = :subscription))
  AND NOT EXISTS (SELECT 1 FROM redrive_letters l WHERE l.subscription = :subscription AND l.position = e.position
                  AND l.state <> 'superseded') ORDER BY e.position

-- name: ledger_counts
SELECT state, reason, type, fingerprint, count(*) FROM redrive_letters WHERE subscription = :subscription
GROUP BY state, reason, type, fingerprint

-- name: ledger_kept_counts
SELECT state, reason, type, fingerprint, n FROM redrive_letter_counts WHERE subscription = :subscription

-- name: ledger_lanes
-- Lanes whose number of open letters, or whose head, is not kept as the letters have it.
SELECT min(oldest) FROM
  (SELECT lane, n, oldest FROM redrive_lanes WHERE subscription = :subscription
   UNION ALL SELECT lane, -count(*), min(position) FROM redrive_letters
   WHERE subscription = :subscription AND lane IS NOT NULL AND state IN ('retrying', 'dead') GROUP BY lane) AS both_sides
GROUP BY lane HAVING count(*) <> 2 OR sum(n) <> 0 OR min(oldest) <> max(oldest) ORDER BY 1

-- name: ledger_causes
-- Causes whose lanes, or the letters that wait in them, are not as many as is kept.
SELECT fingerprint FROM
  (SELECT fingerprint, lanes, waiting FROM redrive_causes WHERE subscription = :subscription
   UNION ALL SELECT h.fingerprint, -1, 1 - k.n FROM
     (SELECT lane, min(position) AS position, count(*) AS n FROM redrive_letters
      WHERE subscription = :subscription AND lane IS NOT NULL AND state IN ('retrying', 'dead') GROUP BY lane) AS k
   JOIN redrive_letters h ON h.subscription = :subscription AND h.position = k.position AND h.state <> 'superseded'
     AND h.state = 'dead'
   UNION ALL SELECT fingerprint, -1, 0 FROM redrive_letters
   WHERE subscription = :subscription AND lane IS NULL AND state = 'dead') AS both_sides
GROUP BY fingerprint HAVING sum(lanes) <> 0 OR sum(waiting) <> 0 ORDER BY 1

-- name: ledger_lost_events
-- Letters whose event is no longer in the log, or is another one.
SELECT l.position FROM redrive_letters l
LEFT JOIN redrive_events e ON e.position = l.position AND e.id = l.event_id AND e.log = :log AND e.type = l.type
WHERE l.subscription = :subscription AND l.state <> 'superseded' AND e.position IS NULL ORDER BY l.position

-- name: ledger_log_holes
-- Events before which a version of their key is missing, or that stand in the wrong order. What landed has none.
SELECT position FROM
  (SELECT position, version, lag(version) OVER w AS before, lag(position) OVER w AS below
   FROM redrive_events WHERE log = :log AND version > 0 WINDOW w AS (PARTITION BY key ORDER BY version)) AS numbered
WHERE version <> before + 1 OR position < below ORDER BY position

-- name: ledger_said
SELECT id, position, error_type, error_message FROM redrive_letters
WHERE subscription = :subscription AND state = 'dead' AND id > :after ORDER BY id LIMIT :limit

-- name: ledger_orphans
-- Subscriptions that other tables speak of and nobody has registered.
SELECT subscription FROM redrive_progress WHERE subscription NOT IN (SELECT id FROM redrive_subscriptions)
UNION SELECT subscription FROM redrive_letters WHERE subscription NOT IN (SELECT id FROM redrive_subscriptions)
UNION SELECT member & 4294967295 FROM redrive_done_chunks WHERE member & 4294967295 NOT IN (SELECT id FROM redrive_subscriptions)
UNION SELECT subscription FROM redrive_lanes WHERE subscription NOT IN (SELECT id FROM redrive_subscriptions)
ORDER BY 1

-- ---------------------------------------------------------------- selections, operations, notes

-- name: causes
-- Dead letters by cause, from the counters.
SELECT c.fingerprint, c.subscription, s.name, c.reason, c.type, c.n, c.last_at FROM redrive_letter_counts c
JOIN redrive_subscriptions s ON s.id = c.subscription WHERE c.state = 'dead'

-- name: cause_first
SELECT error_type, error_message, first_failed_at FROM redrive_letters
WHERE state = 'dead' AND fingerprint = :fingerprint AND subscription = :subscription ORDER BY id LIMIT 1

-- name: cause_counts
-- How many lanes it holds back, and how many letters wait behind their heads.
SELECT lanes, waiting FROM redrive_causes WHERE subscription = :subscription AND fingerprint = :fingerprint

-- name: lane_letters
-- What is open in a lane from a position on, in order.
SELECT l.id, s.name, l.subscription, l.position, l.lane, l.event_id, l.type, l.key, l.state, l.reason, l.rev, l.attempts,
       l.replaying, l.due_at, l.parked_at, l.first_failed_at, l.last_failed_at, l.error_type, l.error_message, l.fingerprint,
       l.edits, l.touched_at, l.resolved_by, s.source, l.dependency, l.auto_replays
FROM redrive_letters l JOIN redrive_subscriptions s ON s.id = l.subscription
WHERE l.subscription = :subscription AND l.lane = :lane AND l.state IN ('retrying', 'dead') AND l.position > :above
ORDER BY l.position LIMIT :limit

-- name: operation_letter_add
INSERT INTO redrive_operation_letters (operation, letter, rev) VALUES (?, ?, ?)

-- name: operation_get
SELECT id, action, who, reason, at, selected, rate, ended_at, cancelled, applied, failed, skipped, waiting,
       selected - applied - failed - skipped - waiting
FROM redrive_operations WHERE id = :id

-- name: operation_page
SELECT id, action, who, reason, at, selected, rate, ended_at, cancelled, applied, failed, skipped, waiting,
       selected - applied - failed - skipped - waiting
FROM redrive_operations WHERE id < :before ORDER BY id DESC LIMIT :limit

-- name: operation_grow
UPDATE redrive_operations SET selected = selected + :more WHERE id = :id

-- name: operation_unasked
SELECT letter, rev FROM redrive_operation_letters
WHERE operation = :id AND letter > :after AND asked = 0 AND result IS NULL ORDER BY letter LIMIT :limit

-- name: operation_unasked_last
SELECT letter, rev FROM redrive_operation_letters
WHERE operation = :id AND letter < :after AND asked = 0 AND result IS NULL ORDER BY letter DESC LIMIT :limit

-- name: operation_lock
-- Whoever asks for its letters or cancels it does so alone.
UPDATE redrive_operations SET waiting = waiting WHERE id = :id

-- name: operation_unasked_among
-- Nothing of an operation that was cancelled.
SELECT letter FROM redrive_operation_letters
WHERE operation = :id AND letter BETWEEN :first AND :last AND asked = 0 AND result IS NULL
  AND NOT EXISTS (SELECT 1 FROM redrive_operations WHERE id = :id AND cancelled = 1)

-- name: operation_refused
-- Of what nobody has asked for: a deed that was refused may have been done by another command.
UPDATE redrive_operation_letters SET asked = 1, result = 'skipped', why = ?
WHERE operation = ? AND letter = ? AND asked = 0 AND result IS NULL

-- name: operation_unfinished
-- The next letters of an operation: is each asked for and not run, or is what waited behind it due now?
SELECT o.letter, l.subscription, CASE
       WHEN o.asked = 1 AND o.result IS NULL THEN 1
       WHEN o.result = 'applied' AND EXISTS
            (SELECT 1 FROM redrive_lanes k JOIN redrive_letters h ON h.subscription = k.subscription AND h.lane = k.lane
             AND h.position = k.oldest AND h.state IN ('retrying', 'dead')
             WHERE k.subscription = l.subscription AND k.lane = l.lane AND h.state = 'retrying' AND h.due_at <= :now) THEN 1
       ELSE 0 END
FROM redrive_operation_letters o LEFT JOIN redrive_letters l ON l.id = o.letter
WHERE o.operation = :id AND o.letter > :after ORDER BY o.letter LIMIT :limit

-- name: operations_waiting
-- Operations with letters that have not run yet, the newest first.
SELECT id, action, who, reason, at, selected, rate, ended_at, cancelled, applied, failed, skipped, waiting,
       selected - applied - failed - skipped - waiting
FROM redrive_operations WHERE waiting > 0 ORDER BY id DESC LIMIT :limit

-- name: operation_waiting
SELECT o.letter, l.subscription, l.lane FROM redrive_operation_letters o JOIN redrive_letters l ON l.id = o.letter
WHERE o.operation = :id AND o.asked = 1 AND o.result IS NULL ORDER BY o.letter LIMIT :limit

-- name: operation_asked
UPDATE redrive_operation_letters SET asked = 1, result = ?, why = ? WHERE operation = ? AND letter = ? AND result IS NULL

-- name: operation_end
UPDATE redrive_operations SET ended_at = :now, cancelled = :cancelled WHERE id = :id AND ended_at IS NULL

-- name: operation_cancel
UPDATE redrive_operations SET ended_at = :now, cancelled = 1 WHERE id = :id

-- name: operation_skip_unasked
-- Some at a time: an operation may have hundreds of thousands.
UPDATE redrive_operation_letters SET result = 'skipped', why = :why WHERE operation = :id AND letter IN
    (SELECT letter FROM redrive_operation_letters WHERE operation = :id AND result IS NULL AND asked = 0
     ORDER BY letter LIMIT :limit)

-- name: operation_left
-- What an operation has not asked for yet, as automatic replay looks at it.
SELECT l.id, l.position, l.lane, l.reason, l.dependency, l.auto_replays, coalesce(l.last_failed_at, l.parked_at), o.rev
FROM redrive_operation_letters o JOIN redrive_letters l ON l.id = o.letter
WHERE o.operation = :id AND o.asked = 0 AND o.result IS NULL ORDER BY l.position

-- name: operation_relapsed
-- Has a replay of this operation failed by a fault of the dependency?
SELECT 1 FROM redrive_operation_letters o JOIN redrive_letters l ON l.id = o.letter
WHERE o.operation = :id AND o.result = 'failed' AND l.dependency IS NOT NULL LIMIT 1

-- name: operation_held
-- How many that were asked for do not run: put off by the breaker of their key, or due for long.
SELECT count(*) FROM redrive_operation_letters o JOIN redrive_letters l ON l.id = o.letter
WHERE o.operation = :id AND o.asked = 1 AND o.result IS NULL AND l.state = 'retrying'
  AND (l.replaying = 0 OR l.due_at > :now OR l.due_at < :before)

-- name: letters_to_heal
-- Dead letters whose failure may pass, the oldest first; the reasons are those of policy/healing.py, which decides the rest.
SELECT l.id, l.position, l.lane, l.reason, l.dependency, l.auto_replays, coalesce(l.last_failed_at, l.parked_at), l.rev,
       l.operation,
       CASE WHEN EXISTS (SELECT 1 FROM redrive_letters h WHERE h.subscription = l.subscription AND h.lane = l.lane
                         AND h.state IN ('retrying', 'dead') AND h.position < l.position) THEN 0 ELSE 1 END
FROM redrive_letters l
WHERE l.subscription = :subscription AND l.state = 'dead'
  AND l.reason IN ('attempts_exhausted', 'breaker_open', 'retry_limited') AND l.position > :above
ORDER BY l.position LIMIT :limit

-- name: note_add
INSERT INTO redrive_notes (fingerprint, at, who, text, resolved) VALUES (:fingerprint, :now, :who, :text, :resolved)

-- name: notes_of
SELECT at, who, text, resolved FROM redrive_notes WHERE fingerprint = :fingerprint ORDER BY id

-- ---------------------------------------------------------------- doctor

-- name: doctor_created
SELECT created_at FROM redrive_subscriptions WHERE id = :subscription

-- name: doctor_lanes
-- The fullest lanes.
SELECT l.subscription, l.lane, l.n FROM redrive_subscriptions s JOIN redrive_lanes l ON l.subscription = s.id
WHERE l.n >= :least ORDER BY l.n DESC LIMIT 20

-- ---------------------------------------------------------------- prune

-- name: prune_applied
SELECT id, position, type FROM redrive_letters
WHERE state = 'applied' AND subscription = :subscription AND id > :after AND touched_at < :before ORDER BY id LIMIT :limit

-- name: prune_discarded
-- Discarded letters that have a history to lose.
SELECT id, position, type FROM redrive_letters l
WHERE state = 'discarded' AND subscription = :subscription AND id > :after AND touched_at < :before
  AND (EXISTS (SELECT 1 FROM redrive_attempts a WHERE a.letter = l.id)
       OR (SELECT count(*) FROM redrive_journal j WHERE j.letter = l.id) > 1)
ORDER BY id LIMIT :limit

-- name: prune_count
UPDATE redrive_letter_counts SET n = n - ?
WHERE subscription = ? AND state = ? AND reason = ? AND type = ? AND fingerprint = ?

-- name: prune_counts_empty
DELETE FROM redrive_letter_counts WHERE subscription = :subscription AND n = 0

-- name: prune_applied_add
UPDATE redrive_progress SET applied = applied + :applied WHERE member = :subscription

-- name: prune_first_open
SELECT min(position) FROM redrive_letters WHERE subscription = :subscription AND state IN ('retrying', 'dead')

-- name: prune_first_young
-- The first event whose letter was settled after a time.
SELECT position FROM redrive_letters
WHERE subscription = :subscription AND state <> 'superseded' AND state IN ('applied', 'discarded') AND touched_at >= :before
ORDER BY position LIMIT 1

-- name: trim_page
-- The oldest events of a log.
SELECT position, time_us FROM redrive_events WHERE log = :log AND position <= :upto ORDER BY position LIMIT :limit

-- name: prune_range
DELETE FROM redrive_ranges WHERE subscription = :subscription AND from_position = :from_position

-- ---------------------------------------------------------------- copying a store

-- name: copy_mark
-- What changes when anybody does anything to a store: another event, owner, operator or note.
SELECT (SELECT coalesce(max(position), 0) FROM redrive_events),
       (SELECT id FROM redrive_events ORDER BY position DESC LIMIT 1),
       (SELECT CAST(coalesce(sum(epoch + parked_version), 0) AS bigint) FROM redrive_progress),
       (SELECT count(*) FROM redrive_subscriptions), (SELECT coalesce(max(id), 0) FROM redrive_notes),
       (SELECT coalesce(max(seq), 0) + count(*) FROM redrive_scheduled),
       (SELECT hash FROM redrive_audit ORDER BY id DESC LIMIT 1)

-- name: copy_counts
-- How many rows there are to copy; of the meta values only a few are.
SELECT 'logs' AS name, count(*) AS n FROM redrive_logs
UNION ALL SELECT 'events', count(*) FROM redrive_events
UNION ALL SELECT 'subscriptions', count(*) FROM redrive_subscriptions
UNION ALL SELECT 'progress', count(*) FROM redrive_progress
UNION ALL SELECT 'done_chunks', count(*) FROM redrive_done_chunks
UNION ALL SELECT 'filters', count(*) FROM redrive_filters
UNION ALL SELECT 'ranges', count(*) FROM redrive_ranges
UNION ALL SELECT 'tables', count(*) FROM redrive_tables
UNION ALL SELECT 'letters', count(*) FROM redrive_letters
UNION ALL SELECT 'attempts', count(*) FROM redrive_attempts
UNION ALL SELECT 'edits', count(*) FROM redrive_edits
UNION ALL SELECT 'journal', count(*) FROM redrive_journal
UNION ALL SELECT 'inflight', count(*) FROM redrive_inflight
UNION ALL SELECT 'state', count(*) FROM redrive_state
UNION ALL SELECT 'operation_letters', count(*) FROM redrive_operation_letters
UNION ALL SELECT 'operations', count(*) FROM redrive_operations
UNION ALL SELECT 'notes', count(*) FROM redrive_notes
UNION ALL SELECT 'holds', count(*) FROM redrive_holds
UNION ALL SELECT 'controls', count(*) FROM redrive_controls
UNION ALL SELECT 'audit', count(*) FROM redrive_audit
UNION ALL SELECT 'scheduled', count(*) FROM redrive_scheduled
UNION ALL SELECT 'landed', count(*) FROM redrive_landed

-- name: copy_logs
SELECT id, name, landed_from FROM redrive_logs WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_logs
INSERT INTO redrive_logs (id, name, landed_from)
VALUES (?, ?, ?)

-- name: copy_events
SELECT position, log, id, type, key, version, schema, time_us, headers, data
FROM redrive_events WHERE position > ? ORDER BY position LIMIT ?

-- name: paste_events
INSERT INTO redrive_events (position, log, id, type, key, version, schema, time_us, headers, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_subscriptions
-- Without reservations: every worker has been stopped.
SELECT id, name, kind, source, ordering, created_at, version, key_function, declared_tables, declared_by_operator
FROM redrive_subscriptions WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_subscriptions
INSERT INTO redrive_subscriptions (id, name, kind, source, ordering, created_at, version, key_function, declared_tables,
       declared_by_operator)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_progress
-- Not who owned it: what is moved has been stopped. The epoch goes on from where it was.
SELECT member, subscription, position, anchor, epoch, parked_version, applied, ignored, started_from, quiet_until, paused,
       halted, unclean, boot, settled_at, last_type, last_time_us
FROM redrive_progress WHERE member > ? ORDER BY member LIMIT ?

-- name: paste_progress
INSERT INTO redrive_progress (member, subscription, position, anchor, epoch, parked_version, applied, ignored, started_from, quiet_until, paused,
       halted, unclean, boot, settled_at, last_type, last_time_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_done_chunks
SELECT member, chunk, marks FROM redrive_done_chunks WHERE (member, chunk) > (?, ?) ORDER BY member, chunk LIMIT ?

-- name: paste_done_chunks
INSERT INTO redrive_done_chunks (member, chunk, marks)
VALUES (?, ?, ?)

-- name: copy_filters
SELECT subscription, from_position, types FROM redrive_filters WHERE (subscription, from_position) > (?, ?) ORDER BY subscription, from_position LIMIT ?

-- name: paste_filters
INSERT INTO redrive_filters (subscription, from_position, types)
VALUES (?, ?, ?)

-- name: copy_ranges
SELECT subscription, from_position, to_position, discarded, audit FROM redrive_ranges WHERE (subscription, from_position) > (?, ?) ORDER BY subscription, from_position LIMIT ?

-- name: paste_ranges
INSERT INTO redrive_ranges (subscription, from_position, to_position, discarded, audit)
VALUES (?, ?, ?, ?, ?)

-- name: copy_tables
SELECT name, subscription, columns FROM redrive_tables WHERE name > ? ORDER BY name LIMIT ?

-- name: paste_tables
INSERT INTO redrive_tables (name, subscription, columns)
VALUES (?, ?, ?)

-- name: copy_letters
SELECT id, subscription, position, lane, event_id, type, key, state, reason, rev, attempts, replaying, due_at, due_set_at, delay,
       parked_at, first_failed_at, last_failed_at, error_type, error_message, fingerprint, edits, touched_at, resolved_by, operation,
       dependency, auto_replays
FROM redrive_letters WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_letters
-- Triggers count it and put it into its lane; what they write into the journal is taken out again.
INSERT INTO redrive_letters (id, subscription, position, lane, event_id, type, key, state, reason, rev, attempts, replaying, due_at, due_set_at, delay,
       parked_at, first_failed_at, last_failed_at, error_type, error_message, fingerprint, edits, touched_at, resolved_by, operation,
       dependency, auto_replays)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: paste_no_journal
DELETE FROM redrive_journal

-- name: copy_attempts
SELECT id, letter, attempt, at, outcome, error_type, error_message, traceback, fingerprint, worker
FROM redrive_attempts WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_attempts
INSERT INTO redrive_attempts (id, letter, attempt, at, outcome, error_type, error_message, traceback, fingerprint, worker)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_edits
SELECT subscription, position, rev, data, audit FROM redrive_edits WHERE (subscription, position, rev) > (?, ?, ?) ORDER BY subscription, position, rev LIMIT ?

-- name: paste_edits
INSERT INTO redrive_edits (subscription, position, rev, data, audit)
VALUES (?, ?, ?, ?, ?)

-- name: copy_journal
SELECT seq, letter, subscription, position, state, rev, at FROM redrive_journal WHERE seq > ? ORDER BY seq LIMIT ?

-- name: paste_journal
INSERT INTO redrive_journal (seq, letter, subscription, position, state, rev, at)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: copy_inflight
SELECT member, position, running, charges, lost, boot FROM redrive_inflight WHERE (member, position) > (?, ?) ORDER BY member, position LIMIT ?

-- name: paste_inflight
INSERT INTO redrive_inflight (member, position, running, charges, lost, boot)
VALUES (?, ?, ?, ?, ?, ?)

-- name: copy_state
SELECT subscription, key, version, data FROM redrive_state WHERE (subscription, key) > (?, ?) ORDER BY subscription, key LIMIT ?

-- name: paste_state
INSERT INTO redrive_state (subscription, key, version, data)
VALUES (?, ?, ?, ?)

-- name: copy_operation_letters
SELECT operation, letter, rev, asked, result, why FROM redrive_operation_letters WHERE (operation, letter) > (?, ?) ORDER BY operation, letter LIMIT ?

-- name: paste_operation_letters
-- Before the operations: the trigger that counts results finds none, and each brings its receipt along.
INSERT INTO redrive_operation_letters (operation, letter, rev, asked, result, why)
VALUES (?, ?, ?, ?, ?, ?)

-- name: copy_operations
SELECT id, action, who, reason, at, selected, rate, ended_at, cancelled, applied, failed, skipped, waiting
FROM redrive_operations WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_operations
INSERT INTO redrive_operations (id, action, who, reason, at, selected, rate, ended_at, cancelled, applied, failed, skipped, waiting)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_notes
SELECT id, fingerprint, at, who, text, resolved FROM redrive_notes WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_notes
INSERT INTO redrive_notes (id, fingerprint, at, who, text, resolved)
VALUES (?, ?, ?, ?, ?, ?)

-- name: copy_holds
SELECT id, subscription, pattern, is_prefix, until, set_at, who, reason FROM redrive_holds WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_holds
INSERT INTO redrive_holds (id, subscription, pattern, is_prefix, until, set_at, who, reason)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_controls
SELECT id, subscription, verb, letter, rev, who, reason, at FROM redrive_controls WHERE id > ? ORDER BY id LIMIT ?

-- name: paste_controls
INSERT INTO redrive_controls (id, subscription, verb, letter, rev, who, reason, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: copy_audit
SELECT id, at, who, action, subscription, target, reason, details, hash
FROM redrive_audit WHERE id > ? ORDER BY id LIMIT ?

-- name: copy_meta
-- Not what says how this store itself is kept, or copied.
SELECT name, value FROM redrive_meta
WHERE name > ? AND name NOT IN ('format', 'compatible_from', 'syncs', 'copying', 'copied') ORDER BY name LIMIT ?

-- name: meta_drop
DELETE FROM redrive_meta WHERE name = :name

-- ---------------------------------------------------------------- shell completion

-- name: complete_subscriptions
SELECT name, kind FROM redrive_subscriptions ORDER BY name LIMIT :limit

-- name: complete_logs
SELECT name, '' FROM redrive_logs ORDER BY name LIMIT :limit

-- name: complete_fingerprints
-- Those of dead letters, with most letters first.
SELECT fingerprint, CAST(sum(n) AS bigint) AS letters FROM redrive_letter_counts
WHERE state = 'dead' AND fingerprint <> '' GROUP BY fingerprint ORDER BY letters DESC LIMIT :limit

-- name: complete_operations
SELECT id, action FROM redrive_operations ORDER BY id DESC LIMIT :limit

-- ---------------------------------------------------------------- what needs an operator

-- name: attention_due
-- Among the first letters that are to be retried: heads that were due before a time, and since when the first is.
SELECT count(*), min(due_at) FROM
  (SELECT l.due_at, CASE WHEN k.oldest < l.position THEN 1 ELSE 0 END AS behind
   FROM redrive_letters l LEFT JOIN redrive_lanes k ON k.subscription = l.subscription AND k.lane = l.lane
   WHERE l.state = 'retrying' AND l.subscription = :subscription ORDER BY l.id LIMIT :limit) AS first
WHERE behind = 0 AND due_at < :before

-- name: attention_due_keys
-- The same letters, with their keys: some may be held.
SELECT key, due_at FROM
  (SELECT l.key, l.due_at, CASE WHEN k.oldest < l.position THEN 1 ELSE 0 END AS behind
   FROM redrive_letters l LEFT JOIN redrive_lanes k ON k.subscription = l.subscription AND k.lane = l.lane
   WHERE l.state = 'retrying' AND l.subscription = :subscription ORDER BY l.id LIMIT :limit) AS first
WHERE behind = 0 AND due_at < :before

-- ---------------------------------------------------------------- metrics

-- name: metrics_letters
-- Open letters by state and reason, from the counters.
SELECT s.name, c.state, c.reason, CAST(sum(c.n) AS bigint) FROM redrive_letter_counts c
JOIN redrive_subscriptions s ON s.id = c.subscription WHERE c.state IN ('retrying', 'dead')
GROUP BY s.name, c.state, c.reason

-- name: metrics_letters_held
-- Of each subscription and shown state since when its oldest letter is held, among the first of the stored state.
SELECT s.name, o.shown, (SELECT f.parked_at FROM (SELECT l.parked_at, l.reason FROM redrive_letters l
                                                  WHERE l.state = o.state AND l.subscription = s.id
                                                  ORDER BY l.id LIMIT :limit) AS f
                         WHERE o.state = 'dead' OR (f.reason = 'behind_head') = (o.shown = 'waiting') LIMIT 1)
FROM redrive_subscriptions s
CROSS JOIN (SELECT 'retrying' AS state, 'retrying' AS shown UNION ALL SELECT 'retrying', 'waiting'
            UNION ALL SELECT 'dead', 'dead') AS o

-- name: metrics_due
-- Letters whose time has come and that wait behind no other: heads of lanes, and those without one.
SELECT (SELECT count(*) FROM (SELECT lane, oldest FROM redrive_lanes WHERE subscription = :subscription LIMIT :limit) AS k
        JOIN redrive_letters l ON l.subscription = :subscription AND l.lane = k.lane AND l.position = k.oldest
         AND l.state IN ('retrying', 'dead') WHERE l.state = 'retrying' AND l.due_at <= :now)
     + (SELECT count(*) FROM (SELECT due_at FROM redrive_letters WHERE subscription = :subscription AND lane IS NULL
                              AND state IN ('retrying', 'dead') AND state = 'retrying' LIMIT :limit) AS loose
        WHERE due_at <= :now)

-- name: metrics_lanes
-- Of each subscription how many lanes are parked, counted up to a limit, and how full the fullest is.
SELECT s.name,
       (SELECT count(*) FROM (SELECT 1 FROM redrive_lanes l WHERE l.subscription = s.id LIMIT :limit) AS counted),
       (SELECT n FROM redrive_lanes l WHERE l.subscription = s.id ORDER BY l.n DESC LIMIT 1)
FROM redrive_subscriptions s

-- name: metrics_replayed
-- What came of all bulk replays that are on record.
SELECT CAST(coalesce(sum(applied), 0) AS bigint), CAST(coalesce(sum(failed), 0) AS bigint),
       CAST(coalesce(sum(skipped), 0) AS bigint), CAST(coalesce(sum(waiting), 0) AS bigint)
FROM redrive_operations WHERE action = 'replay'

-- ------------------------------------------------------------ breakers and limits

-- name: breaker_get
SELECT state, failures, successes, since, until FROM redrive_breakers WHERE name = :name

-- name: breakers_all
SELECT name, state, failures, successes, since, until FROM redrive_breakers ORDER BY name

-- name: breakers_between
-- Those of the keys of one name; the lower bound itself is that name's own.
SELECT name, state, failures, successes, since, until FROM redrive_breakers WHERE name > :low AND name < :high
ORDER BY name LIMIT :limit

-- name: breakers_count
SELECT state, count(*) FROM redrive_breakers WHERE name > :low AND name < :high GROUP BY state ORDER BY state

-- name: breaker_forget
-- Only what nobody has used since it was looked at.
DELETE FROM redrive_breakers WHERE name = :name AND state = 'closed' AND failures = 0 AND since = :since

-- name: probes_forget
DELETE FROM redrive_probes WHERE breaker = :breaker

-- name: breaker_lock
-- There is a row from here on, and it is this transaction's.
INSERT INTO redrive_breakers VALUES (:name, 'closed', 0, 0, 0, 0, 0)
ON CONFLICT (name) DO UPDATE SET failures = redrive_breakers.failures
RETURNING state, failures, successes, since, until

-- name: breaker_save
-- Counts how often it closed again, by itself or by hand: who waits for that may not have been there.
UPDATE redrive_breakers SET state = :state, failures = :failures, successes = :successes, since = :since, until = :until,
       recoveries = recoveries + CASE WHEN state <> 'closed' AND :state = 'closed' THEN 1 ELSE 0 END
WHERE name = :name

-- name: breaker_recoveries
SELECT recoveries FROM redrive_breakers WHERE name = :name

-- name: breaker_declare
INSERT INTO redrive_breakers VALUES (:name, 'closed', 0, 0, 0, 0, 0) ON CONFLICT (name) DO NOTHING

-- name: probes_in_flight
SELECT CAST(coalesce(sum(p.n), 0) AS bigint) FROM redrive_probes p
JOIN redrive_progress m ON m.member = p.member AND m.epoch = p.epoch
WHERE p.breaker = :breaker AND p.until > :now

-- name: probes_take
INSERT INTO redrive_probes VALUES (:breaker, :member, :epoch, :n, :until)
ON CONFLICT (breaker, member) DO UPDATE
SET n = excluded.n + CASE WHEN redrive_probes.epoch = excluded.epoch THEN redrive_probes.n ELSE 0 END,
    epoch = excluded.epoch, until = excluded.until

-- name: probes_return
UPDATE redrive_probes SET n = n - :n WHERE breaker = :breaker AND member = :member AND epoch = :epoch AND n >= :n

-- name: bucket_lock
INSERT INTO redrive_buckets VALUES (:name, 0) ON CONFLICT (name) DO UPDATE SET full_at = redrive_buckets.full_at
RETURNING full_at

-- name: bucket_save
UPDATE redrive_buckets SET full_at = :full_at WHERE name = :name

-- name: buckets_between
SELECT 1 FROM redrive_buckets WHERE name > :low AND name < :high LIMIT 1

-- ---------------------------------------------------------------- scheduled events

-- Whoever writes here has claimed the log: what is found in it, or waits for it, stays so until the commit.

-- name: event_or_scheduled
-- An id that is taken: by an event of the log, or by one that waits to become one; that has no position and a due time.
SELECT position, id, type, key, version, schema, time_us, headers, data, NULL AS due_at FROM redrive_events
WHERE log = ?1 AND id = ?2
UNION ALL SELECT NULL, id, type, key, NULL, schema, time_us, headers, data, due_at FROM redrive_scheduled
WHERE log = ?1 AND id = ?2

-- name: scheduled_has
SELECT 1 FROM redrive_scheduled s JOIN redrive_logs l ON l.id = s.log WHERE l.name = :log AND s.id = :id

-- name: scheduled_drop
-- Taken back. No row: it has come due, or was taken back before.
DELETE FROM redrive_scheduled WHERE log = :log AND id = :id

-- name: scheduled_next
-- When the next is due, and when the last was scheduled: in the future, if the clock was set back since.
SELECT (SELECT min(due_at) FROM redrive_scheduled), (SELECT max(set_at) FROM redrive_scheduled WHERE delay IS NOT NULL)

-- name: scheduled_rebase
-- The clock was set back, and nobody knows how much of the delay has passed: all of it begins again.
UPDATE redrive_scheduled SET due_at = :now + delay, set_at = :now WHERE set_at > :now AND delay IS NOT NULL

-- name: scheduled_logs
-- The logs that the next so many due events go to.
SELECT DISTINCT log FROM (SELECT log FROM redrive_scheduled WHERE due_at <= :now ORDER BY due_at, seq LIMIT :limit) AS due

-- name: scheduled_due
SELECT s.seq, s.log, l.name, s.id, s.type, s.key, s.schema, s.time_us, s.headers, s.data, s.due_at
FROM redrive_scheduled s JOIN redrive_logs l ON l.id = s.log
WHERE s.due_at <= :now ORDER BY s.due_at, s.seq LIMIT :limit

-- name: scheduled_take
DELETE FROM redrive_scheduled WHERE seq = ?

-- name: scheduled_backlog
-- By log: how many wait, how many of them are due, and when the first is.
SELECT l.name, count(*), CAST(sum(CASE WHEN s.due_at <= :now THEN 1 ELSE 0 END) AS bigint), min(s.due_at)
FROM redrive_scheduled s JOIN redrive_logs l ON l.id = s.log GROUP BY l.name ORDER BY l.name

-- name: scheduled_page
-- In the order in which they come due.
SELECT l.name, s.id, s.type, s.key, s.due_at, s.set_at, length(s.data), s.seq
FROM redrive_scheduled s JOIN redrive_logs l ON l.id = s.log
WHERE (CAST(:log AS text) IS NULL OR l.name = :log) AND (CAST(:key AS text) IS NULL OR s.key = :key)
  AND (CAST(:type AS text) IS NULL OR s.type = :type)
ORDER BY s.due_at, s.seq LIMIT :limit

-- name: scheduled_by_id
SELECT l.name, s.id, s.type, s.key, s.due_at, s.set_at, length(s.data), s.seq
FROM redrive_scheduled s JOIN redrive_logs l ON l.id = s.log
WHERE s.id = :id AND (CAST(:log AS text) IS NULL OR l.name = :log) ORDER BY l.name

-- name: ledger_scheduled
-- Scheduled for a log that there is not: nobody would ever append it.
SELECT s.id FROM redrive_scheduled s WHERE NOT EXISTS (SELECT 1 FROM redrive_logs l WHERE l.id = s.log) ORDER BY s.seq

-- name: copy_scheduled
SELECT seq, log, id, type, key, schema, time_us, headers, data, due_at, set_at, delay
FROM redrive_scheduled WHERE seq > ? ORDER BY seq LIMIT ?

-- name: paste_scheduled
INSERT INTO redrive_scheduled (seq, log, id, type, key, schema, time_us, headers, data, due_at, set_at, delay)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- ---------------------------------------------------------------- landing

-- name: log_landed
-- The first events of this log that have a key and no version lie here.
UPDATE redrive_logs SET landed_from = :position WHERE id = :log AND landed_from IS NULL

-- name: log_landed_from
SELECT landed_from FROM redrive_logs WHERE id = ?

-- name: landed_all
SELECT partition, position FROM redrive_landed WHERE subscription = :subscription

-- name: landed_put
INSERT INTO redrive_landed (subscription, partition, position) VALUES (?, ?, ?)
ON CONFLICT (subscription, partition) DO UPDATE SET position = excluded.position

-- name: copy_landed
SELECT subscription, partition, position FROM redrive_landed WHERE (subscription, partition) > (?, ?)
ORDER BY subscription, partition LIMIT ?

-- name: paste_landed
INSERT INTO redrive_landed (subscription, partition, position) VALUES (?, ?, ?)

-- ---------------------------------------------------------------- mirrors of letters

-- name: journal_after
-- What happened to letters, in order, with what is known of each now: its subscription, its error, its event, its edit.
-- `born` is whether it is the letter's first entry.
SELECT j.seq, j.letter, j.rev, j.state, j.at,
       CASE WHEN EXISTS (SELECT 1 FROM redrive_journal o WHERE o.letter = j.letter AND o.seq < j.seq) THEN 0 ELSE 1 END,
       s.name, s.source, j.position, l.lane, l.reason, l.attempts, l.first_failed_at, l.last_failed_at, l.error_type,
       l.error_message, l.fingerprint, l.resolved_by,
       (SELECT a.worker FROM redrive_attempts a WHERE a.letter = l.id ORDER BY a.id DESC LIMIT 1),
       e.id, e.type, e.key, e.schema, e.time_us, e.headers, e.data, d.data
FROM redrive_journal j JOIN redrive_letters l ON l.id = j.letter JOIN redrive_subscriptions s ON s.id = j.subscription
LEFT JOIN redrive_events e ON e.position = j.position
LEFT JOIN redrive_edits d ON d.subscription = l.subscription AND d.position = l.position AND d.rev = l.edits
WHERE j.seq > :after ORDER BY j.seq LIMIT :limit

-- name: journal_lag
-- How many entries come after one, up to a limit, and when the first of them was written.
SELECT count(*), min(at) FROM (SELECT at FROM redrive_journal WHERE seq > :after ORDER BY seq LIMIT :limit) AS later

-- name: mirrored
-- How far each mirror is; NULL: it has not begun.
SELECT s.name, l.position FROM redrive_subscriptions s LEFT JOIN redrive_landed l ON l.subscription = s.id
WHERE s.kind = 'mirror' ORDER BY s.name

-- name: journal_first_of
-- The first entry above one that tells of a letter of this subscription.
SELECT seq FROM redrive_journal WHERE seq > :after AND subscription = :subscription ORDER BY seq LIMIT 1

-- name: journal_lowest
-- The first position in a log to whose letter something happened above an entry.
SELECT min(j.position) FROM redrive_journal j JOIN redrive_subscriptions s ON s.id = j.subscription
WHERE j.seq > :after AND s.source = :source

-- ---------------------------------------------------------------- forgetting a subscription

-- name: forget_counts
-- The rows of one subscription, by table.
SELECT 'attempts', count(*) FROM redrive_attempts WHERE letter IN (SELECT id FROM redrive_letters WHERE subscription = :subscription)
UNION ALL SELECT 'edits', count(*) FROM redrive_edits WHERE subscription = :subscription
UNION ALL SELECT 'journal', count(*) FROM redrive_journal WHERE subscription = :subscription
UNION ALL SELECT 'letters', count(*) FROM redrive_letters WHERE subscription = :subscription
UNION ALL SELECT 'letter_counts', count(*) FROM redrive_letter_counts WHERE subscription = :subscription
UNION ALL SELECT 'causes', count(*) FROM redrive_causes WHERE subscription = :subscription
UNION ALL SELECT 'lanes', count(*) FROM redrive_lanes WHERE subscription = :subscription
UNION ALL SELECT 'changes', count(*) FROM redrive_changes WHERE subscription = :subscription
UNION ALL SELECT 'holds', count(*) FROM redrive_holds WHERE subscription = :subscription
UNION ALL SELECT 'controls', count(*) FROM redrive_controls WHERE subscription = :subscription
UNION ALL SELECT 'inflight', count(*) FROM redrive_inflight WHERE member & 4294967295 = :subscription
UNION ALL SELECT 'probes', count(*) FROM redrive_probes WHERE member & 4294967295 = :subscription
UNION ALL SELECT 'done_chunks', count(*) FROM redrive_done_chunks WHERE member & 4294967295 = :subscription
UNION ALL SELECT 'filters', count(*) FROM redrive_filters WHERE subscription = :subscription
UNION ALL SELECT 'ranges', count(*) FROM redrive_ranges WHERE subscription = :subscription
UNION ALL SELECT 'tables', count(*) FROM redrive_tables WHERE subscription = :subscription
UNION ALL SELECT 'state', count(*) FROM redrive_state WHERE subscription = :subscription
UNION ALL SELECT 'landed', count(*) FROM redrive_landed WHERE subscription = :subscription
UNION ALL SELECT 'progress', count(*) FROM redrive_progress WHERE subscription = :subscription
UNION ALL SELECT 'subscriptions', count(*) FROM redrive_subscriptions WHERE id = :subscription

-- name: forget_operation_letters
-- Operations keep their receipts: letters that had not run yet count as skipped.
UPDATE redrive_operation_letters SET result = 'skipped', why = 'its subscription was forgotten'
WHERE result IS NULL AND letter IN (SELECT id FROM redrive_letters WHERE subscription = :subscription)

-- name: forget_meta
DELETE FROM redrive_meta WHERE name IN ('state ' || :subscription, 'states:' || :subscription, 'states_mark:' || :subscription,
  'heard ' || :subscription, 'heard letters ' || :subscription, 'pruned ' || :subscription, 'auto-replay ' || :subscription)

-- name: forget_attempts
DELETE FROM redrive_attempts WHERE letter IN (SELECT id FROM redrive_letters WHERE subscription = :subscription)

-- name: forget_edits
DELETE FROM redrive_edits WHERE subscription = :subscription

-- name: forget_journal
DELETE FROM redrive_journal WHERE subscription = :subscription

-- name: forget_letters
DELETE FROM redrive_letters WHERE subscription = :subscription

-- name: forget_letter_counts
DELETE FROM redrive_letter_counts WHERE subscription = :subscription

-- name: forget_causes
DELETE FROM redrive_causes WHERE subscription = :subscription

-- name: forget_lanes
DELETE FROM redrive_lanes WHERE subscription = :subscription

-- name: forget_changes
DELETE FROM redrive_changes WHERE subscription = :subscription

-- name: forget_holds
DELETE FROM redrive_holds WHERE subscription = :subscription

-- name: forget_controls
DELETE FROM redrive_controls WHERE subscription = :subscription

-- name: forget_inflight
DELETE FROM redrive_inflight WHERE member & 4294967295 = :subscription

-- name: forget_probes
DELETE FROM redrive_probes WHERE member & 4294967295 = :subscription

-- name: forget_done_chunks
DELETE FROM redrive_done_chunks WHERE member & 4294967295 = :subscription

-- name: forget_filters
DELETE FROM redrive_filters WHERE subscription = :subscription

-- name: forget_ranges
DELETE FROM redrive_ranges WHERE subscription = :subscription

-- name: forget_tables
DELETE FROM redrive_tables WHERE subscription = :subscription

-- name: forget_state
DELETE FROM redrive_state WHERE subscription = :subscription

-- name: forget_landed
DELETE FROM redrive_landed WHERE subscription = :subscription

-- name: forget_progress
DELETE FROM redrive_progress WHERE subscription = :subscription

-- name: forget_subscriptions
DELETE FROM redrive_subscriptions WHERE id = :subscription
