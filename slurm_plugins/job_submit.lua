-- Stand-alone job_submit.lua for a site that has none of its own. It lies beside slurm.conf, with aistation.lua.
-- A site with its own file adds the lines between the marks to it instead.
--
-- A job is never refused here: whatever goes wrong, it passes unchanged with one line in slurmctld's log.

-- mark: begin
local folder = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"
package.path = folder .. "?.lua;" .. package.path
package.loaded["aistation"] = nil -- read again when slurmctld reads this file again
local loaded, aistation = pcall(require, "aistation")
if not loaded then
  slurm.log_error("%s", "aistation: module not loaded, jobs pass unchanged: " .. tostring(aistation))
end
-- mark: end

function slurm_job_submit(job_desc, part_list, submit_uid)
  if loaded then pcall(aistation.job_submit, job_desc, part_list, submit_uid) end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if loaded then pcall(aistation.job_modify, job_desc, job_rec, part_list, modify_uid) end
  return slurm.SUCCESS
end

return slurm.SUCCESS
