// Writes a report of 20 parts under the lock reports/nightly. Needs Java 17. docs/clients.md has the exit statuses.
//   STORAGE=http://127.0.0.1:8090/report java examples/Nightly.java
//
// A thread renews the lease. Another thread, which does nothing else, halts the virtual machine before the deadline.
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.*;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.regex.*;

public class Nightly {
    static final String GATEWAY = Objects.requireNonNullElse(System.getenv("FENCEPOST"), "http://127.0.0.1:8080");
    static final String STORAGE = Objects.requireNonNullElse(System.getenv("STORAGE"), "");
    static final String KEY = Objects.requireNonNullElse(System.getenv("FENCEPOST_KEY"), "");
    static final long TTL = 30000;
    static final HttpClient http = HttpClient.newBuilder()
        .version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(5)).build();

    // Milliseconds, suspended time included where there is such a clock.
    static long now() {
        try {
            return (long) (Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]) * 1000);
        } catch (Exception e) {
            return System.nanoTime() / 1_000_000;
        }
    }

    static class Lease {
        final URI uri;
        final String id;
        volatile long sent = -1, deadline, renewAt, token; // sent: when what was answered was
        volatile boolean ending, released;

        Lease(String name) {
            uri = URI.create(GATEWAY + "/locks/" + name);
            byte[] random = new byte[28];
            new SecureRandom().nextBytes(random);
            String hex = HexFormat.of().formatHex(random);
            id = "01" + hex.substring(0, 24).toUpperCase() + "." + hex.substring(24);
        }

        // Returns the status; 0: no answer, so nothing is known.
        int ask(String method, String body, long timeout) {
            long asking = now();
            CompletableFuture<HttpResponse<String>> asked = null;
            try {
                HttpRequest.Builder request = HttpRequest.newBuilder(uri).header("Lease-Id", id);
                if (!KEY.isEmpty()) request.header("Authorization", "Bearer " + KEY);
                asked = http.sendAsync(request.method(method, BodyPublishers.ofString(body)).build(), BodyHandlers.ofString());
                // HttpRequest's own timeout ends when the headers are there; this one has the body too.
                HttpResponse<String> answer = asked.get(timeout, TimeUnit.MILLISECONDS);
                int status = answer.statusCode();
                if (status == 201 || status == 200 && !method.equals("DELETE")) {
                    long waited = number(answer.body(), "waited_ms"), expires = number(answer.body(), "expires_in_ms");
                    long renew = number(answer.body(), "renew_in_ms"), fencing = number(answer.body(), "fencing_token");
                    synchronized (this) {
                        if (asking > sent) { // one that was sent later may have been answered sooner
                            sent = asking;
                            deadline = sent + waited + expires;
                            renewAt = sent + waited + renew;
                            token = fencing;
                        }
                    }
                }
                return status;
            } catch (Exception e) { // not the gateway's answer, or none in time
                if (asked != null) asked.cancel(true);
                return 0;
            }
        }

        static long number(String json, String field) {
            Matcher m = Pattern.compile("\"" + field + "\":(\\d+)").matcher(json);
            if (!m.find()) throw new IllegalStateException(field + " is missing");
            return Long.parseLong(m.group(1));
        }

        boolean acquire(long wait) throws InterruptedException {
            long giveUp = now() + wait;
            for (long left; !ending && (left = giveUp - now()) > 0; Thread.sleep(1000)) {
                int status = ask("POST", "{\"ttl_ms\":" + TTL + ",\"wait_ms\":" + left + ",\"owner\":\"java\"}", left + 5000);
                if ((status == 200 || status == 201) && left() > 0) {
                    start(this::watch);
                    start(this::keep);
                    return true;
                }
                if (status != 0 && status != 429 && status < 500) return false;
            } // not known, or not now: the same request again
            return false;
        }

        long left() {
            return deadline - now() - TTL / 10; // a tenth to spare
        }

        void watch() { // no request, no output: nothing that can wait
            while (left() > 0) {
                pause(Math.min(left(), 200));
                if (released) return;
            }
            Runtime.getRuntime().halt(124); // the main thread can't be asked
        }

        void keep() {
            while (!released) {
                pause(Math.min(renewAt - now(), 1000));
                if (released || now() < renewAt) continue;
                long left = Math.max(50, left());
                renewAt = now() + left / 3; // no answer by then: another one beside it
                start(() -> renew(left));
            }
        }

        void renew(long timeout) {
            int status = ask("PUT", "{}", timeout);
            if (status == 412 && !released) Runtime.getRuntime().halt(124);
            if (status != 200) renewAt = Math.min(renewAt, now() + left() / 10);
        }

        static void start(Runnable job) {
            Thread thread = new Thread(job);
            thread.setDaemon(true);
            thread.start();
        }

        static void pause(long ms) {
            try {
                Thread.sleep(Math.max(20, ms));
            } catch (InterruptedException e) { // nobody interrupts these threads
            }
        }

        void release() {
            released = true;
            ask("DELETE", "", 5000);
        }
    }

    static int work(Lease lease) throws Exception {
        if (!lease.acquire(30000)) return 75;
        for (int part = 1; part <= 20 && !lease.ending; part++) {
            if (lease.left() <= 0) return 124; // this process may have stood still: look before every write
            int written = http.send(HttpRequest.newBuilder(URI.create(STORAGE))
                .header("Fencing-Token", Long.toString(lease.token)) // cut off by halt, if need be
                .PUT(BodyPublishers.ofString("part " + part + " by java")).build(), BodyHandlers.discarding()).statusCode();
            if (written == 412) return 124;
            if (written / 100 != 2) throw new IllegalStateException("part " + part + " is not written: " + written);
            Thread.sleep(200);
        }
        return 0;
    }

    public static void main(String[] args) {
        if (STORAGE.isEmpty()) {
            System.err.println("set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report");
            System.exit(2);
        }
        Lease lease = new Lease("reports/nightly");
        Thread main = Thread.currentThread();
        CountDownLatch stopped = new CountDownLatch(1);
        // It runs when the program ends, also by SIGTERM, SIGINT and SIGHUP: the work stops, then the lock is free.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            lease.ending = true;
            main.interrupt();
            try {
                stopped.await();
            } catch (InterruptedException e) { // nobody interrupts this thread
            }
            lease.release();
        }));
        int status = 1;
        try {
            status = work(lease);
        } catch (Exception e) {
            System.err.println(e);
        } finally {
            stopped.countDown();
        }
        System.exit(status);
    }
}
