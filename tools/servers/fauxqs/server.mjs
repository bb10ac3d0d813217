// fauxqs with nothing kept on disk, on loopback only (its own command listens on every address), with
// queue URLs of the host that was asked (its own are of names that few systems resolve).
// Argument: the port.
import { buildApp } from "fauxqs";
import { S3Store } from "./node_modules/fauxqs/dist/s3/s3Store.js";
import { SnsStore } from "./node_modules/fauxqs/dist/sns/snsStore.js";
import { SqsStore } from "./node_modules/fauxqs/dist/sqs/sqsStore.js";

const stores = { sqsStore: new SqsStore(), snsStore: new SnsStore(), s3Store: new S3Store() };
stores.sqsStore.host = "";
const app = buildApp({ logger: false, stores });
await app.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
