// fauxqs with nothing kept on disk, on loopback only (its own command listens on every address), with
// queue URLs of the host that was asked (its own are of names that few systems resolve).
// Argument: the port.
import { AsyncLocalStorage } from "node:async_hooks";
import { setImmediate as turn } from "node:timers/promises";

import { buildApp } from "fauxqs";
import { S3Store } from "./node_modules/fauxqs/dist/s3/s3Store.js";
import { SnsStore } from "./node_modules/fauxqs/dist/sns/snsStore.js";
import { SqsQueue, SqsStore } from "./node_modules/fauxqs/dist/sqs/sqsStore.js";

// One message wakes all long polls, and those that come too late would answer early, with nothing. SQS
// lets them wait on. They look one after another (a turn each): the first may have left something. And
// one whose caller has gone takes nothing.
const callers = new AsyncLocalStorage();
const wait = SqsQueue.prototype.waitForMessages;
SqsQueue.prototype.waitForMessages = async function (seconds) {
    const caller = callers.getStore();
    const until = Date.now() + 1000 * seconds;
    do {
        await wait.call(this, Math.max(0, until - Date.now()) / 1000);
        await turn();
        if (caller?.destroyed) await new Promise(() => {});
    } while (!(this.isFifo() ? this.hasAvailableFifoMessages() : this.messages.length) && Date.now() < until);
};

// A receive from a FIFO queue brings one message of a group. SQS brings as many of it as it may, in order.
const dequeue = SqsQueue.prototype.dequeueFifo;
SqsQueue.prototype.dequeueFifo = function (most, ...rest) {
    const locked = this.fifoLockedGroups;
    const ours = new Set();
    const found = [];
    this.fifoLockedGroups = {
        has: (group) => locked.has(group) && !ours.has(group),
        get: (group) => locked.get(group),
        set: (group, count) => locked.set(group, count) && ours.add(group),
        delete: (group) => locked.delete(group),
    };
    try {
        for (let next = [0]; next.length && found.length < Math.min(most, 10); found.push(...next))
            next = dequeue.call(this, 1, ...rest);
    } finally {
        this.fifoLockedGroups = locked;
    }
    return found;
};

const stores = { sqsStore: new SqsStore(), snsStore: new SnsStore(), s3Store: new S3Store() };
stores.sqsStore.host = "";
const app = buildApp({ logger: false, stores });
app.addHook("onRequest", (request, reply, done) => callers.run(request.raw.socket, done));
await app.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
