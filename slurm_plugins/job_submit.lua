-- job_submit.lua for a site that has none of its own; lies beside slurm.conf, with aistation.lua.
-- A site with its own file takes the lines between the marks into it and calls aistation.job_submit from its hook.
--
-- Never refuses a job. slurmctld does not start where this file is missing or broken; a missing or broken aistation.lua
-- costs one line in its log for each job, and nothing else. slurmctld reads both again when this file's time changes.

-- mark: begin
local folder = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"
local loaded, aistation = pcall(dofile, folder .. "aistation.lua")
if loaded and type(aistation) ~= "table" then loaded, aistation = false, "it returns no module" end
-- mark: end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local worked, why = loaded, aistation
  if loaded then worked, why = pcall(aistation.job_submit, job_desc, part_list, submit_uid) end
  if not worked then
    slurm.log_info("%s", "aistation: job passed unchanged: aistation.lua is not usable: " .. tostring(why))
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
