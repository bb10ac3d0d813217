local function forget_dead_letter(id)
  for _, part in ipairs({':letter_bodies', ':letter_attributes', ':letter_records'}) do
    redis.call('HDEL', root .. part, id)
  end
  redis.call('ZREM', root .. ':letters', id)
  redis.call('ZREM', root .. ':letter_times', id)
end
