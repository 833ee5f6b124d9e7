-- Put events at versions first, first + 1, ... of one stream of a run, all or none. The only writer of a log.
--
-- KEYS[1] the run's log (a stream)   KEYS[2] its index (a hash)   KEYS[3] events that stay of the archived ones
-- ARGV[1] stream   ARGV[2] first version   ARGV[3] number of events
-- ARGV[4] stream, ARGV[5] version, ARGV[6] sha of the event that they were made from, or three times ''
-- then for each event:
--         kind, schema, at, cause, attempt, sha, data
--
-- The index holds '@head' -> last position, '@trimmed' -> last position that lies in an archive only,
-- <stream> -> '<number of events> <last kind>', and '<stream>/<version>' -> position: an append costs the same however
-- long the log is.
--
-- Answers {'ok', written, position, position, ...}   every event is there, `written` of them by this call
--         {'taken', entry}                           another event holds one of the versions; nothing was written
--         {'archived', position, position ...}       the event at the first one lies in the archive only; those at the others
--                                                    come before it and are the same; nothing was written
--         {'gap', next version}                      `first` is above the stream's next version; nothing was written
--         {'unfounded'}                              what they were made from is lost, or another one; nothing was written
--         {'ended'}                                  `run_finished` is the log's last event, and stays it; nothing was written
local log, index, kept, stream = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local first, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local HEAD, WIDTH = 6, 7

local function sha_of(entry)
  for j = 1, #entry[2], 2 do
    if entry[2][j] == 'sha' then return entry[2][j + 1] end
  end
end

local row, head, trimmed, run = unpack(redis.call('HMGET', index, stream, '@head', '@trimmed', 'run'))
head, trimmed = tonumber(head or '0'), tonumber(trimmed or '0')
local held = redis.call('XLEN', log)
if held ~= head - trimmed then
  return redis.error_reply('BROKEN its stream holds ' .. held .. ' events, its index counts ' .. (head - trimmed))
end
local length = row and tonumber(string.match(row, '^%d+')) or 0
if first > length + 1 then return {'gap', length + 1} end

local answer = {'ok', 0}
local known = math.min(count, length - first + 1)
for i = 1, known do
  local at = redis.call('HGET', index, stream .. '/' .. (first + i - 1))
  local archived = tonumber(at) <= trimmed
  local entry = (not archived or kept) and redis.call('XRANGE', archived and kept or log, at .. '-0', at .. '-0')[1]
  if not entry and archived then
    answer[1], answer[2] = 'archived', tonumber(at)
    return answer
  end
  if not entry then return redis.error_reply('BROKEN the index names position ' .. at .. ', which the log does not hold') end
  if sha_of(entry) ~= ARGV[HEAD + (i - 1) * WIDTH + 6] then return {'taken', entry} end
  answer[#answer + 1] = tonumber(at)
end
if known == count then return answer end
if run and string.match(run, ' run_finished$') then return {'ended'} end
if ARGV[4] ~= '' then
  local at = tonumber(redis.call('HGET', index, ARGV[4] .. '/' .. ARGV[5]) or 0)
  -- What an archive holds is not lost.
  if at == 0 or at > trimmed then
    local entry = redis.call('XRANGE', log, at .. '-0', at .. '-0')[1]
    if not entry or sha_of(entry) ~= ARGV[6] then return {'unfounded'} end
  end
end

local last_kind
local places = {}
for i = known + 1, count do
  local a, version = HEAD + (i - 1) * WIDTH, first + i - 1
  head = head + 1
  last_kind = ARGV[a + 1]
  redis.call('XADD', log, head .. '-0', 'kind', last_kind, 'stream', stream, 'version', version, 'schema', ARGV[a + 2],
    'at', ARGV[a + 3], 'cause', ARGV[a + 4], 'attempt', ARGV[a + 5], 'sha', ARGV[a + 6], 'data', ARGV[a + 7])
  places[#places + 1], places[#places + 2] = stream .. '/' .. version, head
  answer[#answer + 1] = head
end
answer[2] = count - known
redis.call('HSET', index, stream, (first + count - 1) .. ' ' .. last_kind, '@head', head, unpack(places))
return answer
