-- Put events at versions first, first + 1, ... of one stream of a run, all or none. The only writer of a log.
-- Takes several such appends at once, one after the other: what is known of the log is asked for once.
--
-- KEYS[1] the run's log (a stream)   KEYS[2] its index (a hash)   KEYS[3] events that stay of the archived ones
-- ARGV[1] number of appends, then the stream of each, then for each append:
--         first version, number of events,
--         stream/version of the event that they were made from or '', and where there is one its sha,
--         then for each event: kind, schema, at, cause, attempt, sha, data
--
-- The index holds '@head' -> last position, '@trimmed' -> last position that lies in an archive only,
-- <stream> -> '<number of events> <last kind>', and '<stream>/<version>' -> position: an append costs the same however
-- long the log is. Of what lies in the archive whole it holds less: archived_rows.lua, which precedes this script.
--
-- Answers for each append
--         position                                   of its first event: all of them were written by this call
--         {'ok', written, position, position, ...}   every event is there, `written` of them by this call
--         {'taken', entry}                           another event holds one of the versions; nothing was written
--         {'archived', position, position ...}       the event at the first one lies in the archive only; those at the others
--                                                    come before it and are the same; nothing was written
--         {'gap', next version}                      `first` is above the stream's next version; nothing was written
--         {'unfounded'}                              what they were made from is lost, or another one; nothing was written
--         {'ended'}                                  `run_finished` is the log's last event, and stays it; nothing was written
--         {'refused', why}                           the server took an earlier append and not this one
local log, index, kept, argv = KEYS[1], KEYS[2], KEYS[3], ARGV
local appends, WIDTH = tonumber(argv[1]), 7

local found = redis.call('HMGET', index, '@head', '@trimmed', 'run', unpack(argv, 2, appends + 1))
local head, trimmed = tonumber(found[1] or 0), tonumber(found[2] or 0)
local held = redis.call('XLEN', log)
if held ~= head - trimmed then
  return redis.error_reply('BROKEN its stream holds ' .. held .. ' events, its index counts ' .. (head - trimmed))
end
local rows = {run = found[3]}
for i = 1, appends do
  local stream = argv[i + 1]
  rows[stream] = found[i + 3] or (trimmed > 0 and past_row(index, stream))
end

-- What the index is told at the end, as HSET takes it, and as it is looked for until then.
local news, length, placed = {}, 0, {}

local function sha_of(entry)
  for j = 1, #entry[2], 2 do
    if entry[2][j] == 'sha' then return entry[2][j + 1] end
  end
end

local function place_of(field)
  return placed[field] or redis.call('HGET', index, field) or (trimmed > 0 and past_place(index, field))
end

local function entry_at(at)
  -- Nothing may fail once an append before this one was written: the index would not be told of it.
  return redis.pcall('XRANGE', tonumber(at) <= trimmed and kept or log, at .. '-0', at .. '-0')[1]
end

-- Whether the first `known` of an append's events, the first at ARGV[a], are those that are there; else what to answer.
local function same(stream, first, known, a, answer)
  for i = 1, known do
    local at = place_of(stream .. '/' .. (first + i - 1)) or 'none'
    local entry = tonumber(at) and entry_at(at)
    if not entry and tonumber(at) and tonumber(at) <= trimmed then
      answer[1], answer[2] = 'archived', tonumber(at)
      return false
    end
    if not entry then
      answer[1], answer[2] = 'refused', 'BROKEN the index names position ' .. at .. ', which the log does not hold'
      return false
    end
    if sha_of(entry) ~= argv[a + (i - 1) * WIDTH + 5] then
      answer[1], answer[2], answer[3] = 'taken', entry, nil
      return false
    end
    answer[#answer + 1] = tonumber(at)
  end
  return true
end

local function founded(basis, sha)
  local at = tonumber(place_of(basis) or 0)
  -- What an archive holds is not lost.
  if at > 0 and at <= trimmed then return true end
  local entry = redis.call('XRANGE', log, at .. '-0', at .. '-0')[1]
  return entry and sha_of(entry) == sha
end

local refused

-- One append, whose first version is ARGV[a]: its answer, and where the next one begins.
local function put(stream, a)
  local version, count, basis = argv[a], tonumber(argv[a + 1]), argv[a + 2]
  local sha = argv[a + 3]
  a = a + (basis == '' and 3 or 4)
  local following = a + count * WIDTH
  if refused then return refused, following end
  local first, row = tonumber(version), rows[stream]
  local last = row and tonumber(string.match(row, '^%d+')) or 0
  if first > last + 1 then return {'gap', last + 1}, following end
  local known, answer = last + 1 - first
  if known > 0 then
    known, answer = math.min(count, known), {'ok', 0}
    if not same(stream, first, known, a, answer) or known == count then return answer, following end
    a, version = a + known * WIDTH, last + 1
  end
  if rows.run and string.match(rows.run, ' run_finished$') then return {'ended'}, following end
  if basis ~= '' and not founded(basis, sha) then return {'unfounded'}, following end

  local began, kind = head + 1
  for i = known + 1, count do
    -- As text: a number would be written anew for each command.
    local at = string.format('%d', head + 1)
    local added = redis.pcall('XADD', log, at .. '-0', 'kind', argv[a], 'stream', stream, 'version', version,
      'schema', argv[a + 1], 'at', argv[a + 2], 'cause', argv[a + 3], 'attempt', argv[a + 4], 'sha', argv[a + 5],
      'data', argv[a + 6])
    if type(added) == 'table' then
      -- As a rule it refuses the first one already, and with it everything.
      refused = {'refused', added['err']}
      break
    end
    kind, head = argv[a], head + 1
    local field = stream .. '/' .. version
    news[length + 1], news[length + 2], placed[field] = field, at, at
    length, a, version = length + 2, a + WIDTH, first + i
    if answer then answer[#answer + 1] = head end
  end
  if kind then
    rows[stream] = string.format('%d %s', version - 1, kind)
    news[length + 1], news[length + 2] = stream, rows[stream]
    length = length + 2
  end
  if refused then return refused, following end
  if answer then answer[2] = count - known end
  return answer or began, following
end

local answers, a = {}, appends + 2
for i = 1, appends do answers[i], a = put(argv[i + 1], a) end
if refused and length == 0 then return redis.error_reply(refused[2]) end
if length > 0 then redis.call('HSET', index, '@head', head, unpack(news)) end
return answers
