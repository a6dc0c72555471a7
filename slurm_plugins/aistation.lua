-- aistation.lua: the module that a site's own job_submit.lua calls (job_submit.lua beside it calls nothing else).
--
--     package.path = "/etc/slurm/?.lua;" .. package.path
--     local aistation = require("aistation")
--     function slurm_job_submit(job, parts, uid)
--        aistation.job_submit(job, parts, uid)      -- never refuses a job, never raises
--        return slurm.SUCCESS
--     end
--
-- It only looks up. It marks a job that opted in with one `[ais ...]` segment in AdminComment, which users cannot write,
-- and sets the switch limit that the published decision table gives. slurmctld holds its locks while this runs: no
-- process is started, no network is used, and the table (plain data) is read again only when its first line changed.
-- Lua 5.1 (what Slurm loads) to 5.4.

local aistation = {}

aistation.TABLE_PATH = "/var/lib/aistation/decisions"

local RESUME = {auto = true, megatron = true, deepspeed = true, hf = true, lightning = true, dcp = true, nemo = true, none = true}
local SWITCH = {pack = true, spread = true, any = true}
local HEALTH = {quick = true, full = true, off = true}

local function log(text)
  -- slurm.log_info formats its first argument: a bare % in user text would raise
  slurm.log_info("%s", "aistation: " .. text)
end

-- The job's AISTATION_* variables. Users can forge them (and submissions by API never pass the SPANK plugin), so every
-- value is checked again and only whole, known forms are used.
function aistation.options(job)
  local found = {}
  local env = job.spank_job_env
  if env == nil then return found end
  local size = job.spank_job_env_size
  local index = 0
  while index < 64 and (type(size) ~= "number" or index < size) do
    local entry = env[index]
    if entry == nil then break end
    local name, value = string.match(entry, "^AISTATION_([A-Z_]+)=(.*)$")
    if name then found[name] = value end
    index = index + 1
  end
  return found
end

local function whole(text, low, high)
  if text == nil or not string.match(text, "^%d%d?%d?%d?%d?$") then return nil end
  local n = tonumber(text)
  if n < low or n > high then return nil end
  return n
end

-- "pack,max=2,wait=10" -> "pack", 2, 10; nil where it is not of that form
local function switch_request(text)
  local kind, rest = string.match(text or "", "^(%a+)(.*)$")
  if kind == nil or not SWITCH[kind] then return nil end
  local max, wait
  for key, value in string.gmatch(rest, ",(%a+)=(%d+)") do
    if key == "max" then max = whole(value, 1, 10000) elseif key == "wait" then wait = whole(value, 0, 10080) end
  end
  return kind, max, wait
end

function aistation.tag(options)
  local parts = {"resume=" .. options.RESUME}
  local max = whole(options.MAX_RESTARTS, 0, 1000)
  if max then parts[#parts + 1] = "max=" .. max end
  local hang = whole(options.HANG_TIMEOUT, 1, 10080)
  if hang then parts[#parts + 1] = "hang=" .. hang end
  if options.HEALTH and HEALTH[options.HEALTH] then parts[#parts + 1] = "health=" .. options.HEALTH end
  return "[ais " .. table.concat(parts, " ") .. "]"
end

local function mark(job, options)
  local tag = aistation.tag(options)
  local old = job.admin_comment or ""
  old = string.gsub(old, "%s*%[ais [^%]]*%]", "")
  job.admin_comment = old == "" and tag or (old .. " " .. tag)
end

-- ---- the decision table: "aistation-decisions 1 <unix time> <ttl s>", then "<partition> <nodes> <switches> <wait s>"

local cache = {first = nil, rows = nil}

function aistation.parse(lines)
  local first = lines()
  local version, time, ttl = string.match(first or "", "^aistation%-decisions (%d+) (%d+) (%d+)$")
  if version ~= "1" then return nil, "its first line is not 'aistation-decisions 1 TIME TTL'" end
  local rows, number = {}, 1
  for line in lines do
    number = number + 1
    local partition, nodes, switches, wait = string.match(line, "^([%w_%.%-]+) (%d+) (%d+) (%d+)$")
    if partition then
      rows[partition .. " " .. nodes] = {switches = tonumber(switches), wait = tonumber(wait)}
    elseif line ~= "" then
      return nil, "line " .. number .. " is not 'PARTITION NODES SWITCHES WAIT'"
    end
  end
  return {time = tonumber(time), ttl = tonumber(ttl), rows = rows}
end

local function decisions(now)
  local file = io.open(aistation.TABLE_PATH, "r")
  if file == nil then return nil end
  local first = file:read("*l")
  if first == nil or first ~= cache.first then
    file:seek("set", 0)
    local read, why = aistation.parse(file:lines())
    cache.first, cache.rows = first, read
    if read == nil then log(aistation.TABLE_PATH .. " is not used: " .. why) end
  end
  file:close()
  local current = cache.rows
  if current == nil then return nil end
  if now > current.time + current.ttl then return nil end
  return current.rows
end

local function unset(value)
  return value == nil or value == slurm.NO_VAL or value == 0 or value == slurm.NO_VAL16
end

local function place(job, options)
  local kind, max, wait = switch_request(options.SWITCH)
  if kind == "any" or kind == "spread" then return end
  if not unset(job.req_switch) then return end -- the user's own --switches wins
  if max then
    job.req_switch = max
    if wait then job.wait4switch = wait * 60 end
    return
  end
  if unset(job.min_nodes) or job.min_nodes < 2 or job.min_nodes ~= job.max_nodes then return end
  local rows = decisions(os.time())
  local row = rows and rows[(job.partition or "") .. " " .. tostring(math.floor(job.min_nodes))]
  if row and row.switches > 0 then
    job.req_switch, job.wait4switch = row.switches, row.wait
    slurm.log_user("%s", "aistation: placed on at most " .. row.switches .. " leaf switches if free within " .. row.wait .. " s")
  end
end

local function submit(job)
  local options = aistation.options(job)
  place(job, options)
  local resume = options.RESUME
  if resume == nil then return end
  if not RESUME[resume] then
    log("AISTATION_RESUME has an unknown value, the job is not managed")
    return
  end
  if resume == "none" then return end
  if job.requeue == 0 then
    slurm.log_user("%s", "aistation: --no-requeue is honoured: this job will not be restarted after a fault")
    return
  end
  mark(job, options)
end

function aistation.job_submit(job, parts, uid)
  local ok, why = pcall(submit, job)
  if not ok then pcall(log, "job passed unchanged: " .. tostring(why)) end
  return slurm.SUCCESS
end

function aistation.job_modify(job, record, parts, uid)
  return slurm.SUCCESS
end

return aistation
