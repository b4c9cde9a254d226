"""The Lua scripts: every write to the registry is one of them, so each is one atomic step on the server.

Times are the server's own, so clocks of replicas and coordinators need not agree. Sent as text each time (EVAL): they
are short, and a server that restarted needs no reloading. docs/routing.md describes the keys.
"""

from __future__ import annotations

REGISTER = """
-- KEYS: replicas. ARGV: place, record, ttl in ms. Returns what was there before, if anything.
local t = redis.call('TIME')
local expires = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[3]
local before = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSETNX', KEYS[1], 'era', t[1] .. '.' .. t[2])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', expires) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], 86400000)
return before
"""

UNREGISTER = """
-- KEYS: replicas. ARGV: place, incarnation. A later incarnation at the same place stays.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and cjson.decode(string.match(held, ' (.*)')).incarnation == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
"""

LOOK = """
-- KEYS: replicas. Returns the era, then the record of each replica whose time is not up; removes the others.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local fields = redis.call('HGETALL', KEYS[1])
local found = {''}
for i = 1, #fields, 2 do
  if fields[i] == 'era' then
    found[1] = fields[i + 1]
  else
    local expires, record = string.match(fields[i + 1], '^(%d+) (.*)$')
    if expires and tonumber(expires) > now then
      found[#found + 1] = record
    else
      redis.call('HDEL', KEYS[1], fields[i])
    end
  end
end
return found
"""

FIND = """
-- KEYS: binding. Returns epoch, replica, incarnation, owner, or nothing.
local held = redis.call('HMGET', KEYS[1], 'epoch', 'replica', 'incarnation', 'owner')
return held[1] and held or {}
"""

BIND = """
-- KEYS: binding. ARGV: the epoch it may replace (0: none), replica, incarnation, owner, ttl in ms.
-- Returns the epoch, replica, incarnation, owner that stand now.
local held = redis.call('HMGET', KEYS[1], 'epoch', 'replica', 'incarnation', 'owner')
if held[1] and held[1] ~= ARGV[1] then
  return held
end
local t = redis.call('TIME')
local epoch = t[1] * 1000000 + t[2]
if held[1] and tonumber(held[1]) >= epoch then
  epoch = tonumber(held[1]) + 1
end
local text = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'epoch', text, 'replica', ARGV[2], 'incarnation', ARGV[3], 'owner', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {text, ARGV[2], ARGV[3], ARGV[4]}
"""

RENEW = """
-- KEYS: bindings. ARGV: ttl in ms, then epoch, replica, incarnation, owner of each.
-- A binding that was forgotten is put back, as is one whose making was not heard to succeed. Returns the numbers of
-- those that are another owner's by now, from 1.
local lost = {}
for i, key in ipairs(KEYS) do
  local a = 4 * i - 2
  local held = redis.call('HMGET', key, 'epoch', 'owner')
  if held[1] and held[2] ~= ARGV[a + 3] then
    lost[#lost + 1] = i
  else
    if held[1] ~= ARGV[a] then
      redis.call('HSET', key, 'epoch', ARGV[a], 'replica', ARGV[a + 1],
        'incarnation', ARGV[a + 2], 'owner', ARGV[a + 3])
    end
    redis.call('PEXPIRE', key, ARGV[1])
  end
end
return lost
"""

RELEASE = """
-- KEYS: binding. ARGV: epoch, ms for which it stays (0: it ends now).
if redis.call('HGET', KEYS[1], 'epoch') == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
