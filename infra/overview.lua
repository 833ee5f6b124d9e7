-- What a list of runs says about a log, without sending it: KEYS log, index, events that stay of the archived ones. Reads
-- the run's own stream (`seeded` aside), the newest `folded` and every `scored`; the large events stay where they are.
--
-- Answers {head, {kind, at} of the first entry, {position, at} of the last,
--          entries of the run's stream in order, the newest folded or false, number of folded, of episode streams,
--          episodes that succeeded, that failed, whose score is not valid: each as numbers with spaces between}
local log, index, kept = KEYS[1], KEYS[2], KEYS[3]
local rows = {}
local flat = redis.call('HGETALL', index)
for i = 1, #flat, 2 do rows[flat[i]] = flat[i + 1] end

local function event(stream, version)
  local field = stream .. '/' .. version
  local at = rows[field] or past_place(index, field)
  if not at then return false end
  return redis.call('XRANGE', log, at .. '-0', at .. '-0')[1] or redis.call('XRANGE', kept, at .. '-0', at .. '-0')[1] or false
end

local function length(stream)
  return rows[stream] and tonumber(string.match(rows[stream], '^%d+')) or 0
end

-- A seed bank may be large, and stands between the head and what was told later.
local own, before, after = {}, {}, {}
local first, last = 1, length('run')
while first <= last do
  local one = event('run', first)
  local kind = field_of(one, 'kind')
  if kind ~= 'run_started' and kind ~= 'tasks_listed' then break end
  before[#before + 1] = one
  first = first + 1
end
while last >= first do
  local one = event('run', last)
  local kind = field_of(one, 'kind')
  if kind == '' or kind == 'seeded' then break end
  after[#after + 1] = one
  last = last - 1
end
for i = 1, #before do own[i] = before[i] end
for i = #after, 1, -1 do own[#own + 1] = after[i] end

local outcomes, episodes = {['+'] = {}, ['-'] = {}, ['?'] = {}, ['.'] = {}}, 0
local function count(t, outcome)
  episodes = episodes + 1
  table.insert(outcomes[outcome], t)
end

local past = {}
for name, lines in pairs(rows) do
  if string.match(name, '^@past/') then
    for t, outcome in string.gmatch(lines, '(%d+) %d+ %S+ (%S) [^\n]*\n') do
      count(t, outcome)
      past[t] = true
    end
  end
end
for stream in pairs(rows) do
  local t = string.match(stream, '^episode%-(%d+)$')
  if t and not past[t] then
    local events = length(stream)
    -- An episode in which nothing went wrong is scored by its fifth event.
    local scored = events >= 5 and event(stream, 5)
    for version = 1, events do
      if field_of(scored, 'kind') == 'scored' then break end
      scored = event(stream, version)
    end
    count(t, outcome_of(scored))
  end
end

local one = redis.call('XRANGE', kept, '-', '+', 'COUNT', 1)[1] or redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
local end_ = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local folds = length('projector')
return {
  rows['@head'] or '0',
  {field_of(one, 'kind'), field_of(one, 'at')},
  {end_ and end_[1] or '0-0', field_of(end_, 'at')},
  own,
  folds > 0 and event('projector', folds),
  folds,
  episodes,
  table.concat(outcomes['+'], ' '),
  table.concat(outcomes['-'], ' '),
  table.concat(outcomes['?'], ' '),
}
