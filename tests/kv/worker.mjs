// A worker of the TypeScript design: its domain as it is published, over a state that comes with each request.
// One request and one answer per line, in JSON.

import { createInterface } from "node:readline";
import { webcrypto as crypto } from "node:crypto";

class TokenBucket {
  constructor(tokens, lastRefill, capacity) {
    this.tokens = tokens;
    this.lastRefill = lastRefill;
    this.capacity = capacity;
    if (this.tokens < 0 || this.tokens > this.capacity) {
      throw new Error("TokenBucket invariant violation: invalid token count");
    }
  }

  static create(capacity, now) {
    return new TokenBucket(capacity, now, capacity);
  }

  static fromState(state) {
    return new TokenBucket(state.tokens, new Date(state.lastRefill), state.capacity);
  }

  consumeToken() {
    if (this.tokens <= 0) return false;
    this.tokens -= 1;
    return true;
  }

  refill(policy, currentTime) {
    const timeDelta = currentTime.getTime() - this.lastRefill.getTime();
    const tokensToAdd = Math.floor(timeDelta / policy.refillIntervalMs);
    if (tokensToAdd > 0) {
      this.tokens = Math.min(this.capacity, this.tokens + tokensToAdd);
      this.lastRefill = currentTime;
    }
  }

  toState() {
    return { tokens: this.tokens, lastRefill: this.lastRefill.getTime(), capacity: this.capacity };
  }
}

class RateLimitPolicy {
  constructor(requestsPerMinute, bucketCapacity) {
    this.bucketCapacity = bucketCapacity;
    this.refillIntervalMs = (60 * 1000) / requestsPerMinute;
  }
}

async function kvKey(rawIP) {
  const normalized = rawIP.split(":")[0].toLowerCase().trim();
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(normalized));
  const hex = Array.from(new Uint8Array(hash)).map((b) => b.toString(16).padStart(2, "0")).join("");
  return `rate_limit:ip:${hex.substring(0, 16)}`;
}

function checkRateLimit({ state, rpm, capacity, now }) {
  const policy = new RateLimitPolicy(rpm, capacity);
  const time = new Date(now);
  const bucket = state ? TokenBucket.fromState(JSON.parse(state)) : TokenBucket.create(policy.bucketCapacity, time);
  bucket.refill(policy, time);
  const allowed = bucket.consumeToken();
  return { allowed, state: JSON.stringify(bucket.toState()) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  const answer = "ip" in request ? await kvKey(request.ip) : checkRateLimit(request);
  process.stdout.write(JSON.stringify(answer) + "\n");
}
