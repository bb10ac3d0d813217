// fauxqs with nothing kept on disk, on loopback only (its own command listens on every address).
// Argument: the port.
import { buildApp } from "fauxqs";

const app = buildApp({ logger: false });
await app.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
