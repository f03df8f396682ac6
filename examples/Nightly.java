// Writes a report of 20 parts under the lock reports/nightly. Needs Java 17. docs/clients.md has the exit statuses.
//   STORAGE=http://127.0.0.1:8090/report java examples/Nightly.java
//
// A thread renews the lease. Another thread, which does nothing else, halts the virtual machine before the deadline.
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.*;

public class Nightly {
    static final String LOCK = "reports/nightly"; // any text
    static final String[] GATEWAYS = Arrays.stream(environment("FENCEPOST", "http://127.0.0.1:8080").split("[,\\s]+"))
        .filter(url -> !url.isEmpty()).map(url -> url.replaceAll("/+$", "")).toArray(String[]::new);
    static final String STORAGE = environment("STORAGE", ""), KEY = environment("FENCEPOST_KEY", "");
    static final long TTL = 30000;
    static final HttpClient http = HttpClient.newBuilder()
        .version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(5)).build();

    static String environment(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null || value.isEmpty() ? otherwise : value;
    }

    // Any text as a name: docs/locks.md.
    static String encode(String text) {
        String bytes = new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.ISO_8859_1);
        return Pattern.compile("[^A-Za-z0-9._:@/-]|^/|/\\z|(?<=/)/|(?<![^/])\\.(?=\\.?(/|\\z))").matcher(bytes)
            .replaceAll(m -> String.format("~%02X", (int) m.group().charAt(0)));
    }

    // Milliseconds, suspended time included where there is such a clock.
    static long now() {
        try {
            return (long) (Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]) * 1000);
        } catch (Exception e) {
            return System.nanoTime() / 1_000_000;
        }
    }

    // An error that ends the program with a status.
    static class Failure extends Exception {
        final int status;

        Failure(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    static class Lease {
        final String path, id;
        final AtomicInteger turn = new AtomicInteger(); // of which gateway
        volatile long sent = -1, deadline, renewAt, token; // sent: when what was answered was
        volatile String said = ""; // the last answer, for people
        volatile boolean ending, released;

        Lease(String text) {
            path = "/locks/" + encode(text);
            byte[] random = new byte[28];
            new SecureRandom().nextBytes(random);
            String hex = HexFormat.of().formatHex(random);
            id = "01" + hex.substring(0, 24).toUpperCase() + "." + hex.substring(24);
        }

        record Answer(int status, long pause) { // status 0: it is no gateway's; pause: ms not to ask again
            boolean is(Integer... statuses) {
                return List.of(statuses).contains(status);
            }
        }

        Answer ask(String method, String body, long timeout) {
            long asking = now();
            int mine = turn.getAndIncrement(); // whoever asks before this is answered asks the next gateway
            String text = method + " " + GATEWAYS[mine % GATEWAYS.length] + path;
            CompletableFuture<HttpResponse<String>> asked = null;
            try {
                HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(text.substring(method.length() + 1)));
                request.header("Lease-Id", id);
                if (!KEY.isEmpty()) request.header("Authorization", "Bearer " + KEY);
                asked = http.sendAsync(request.method(method, BodyPublishers.ofString(body)).build(), BodyHandlers.ofString());
                // HttpRequest's own timeout ends when the headers are there; this one has the body too.
                HttpResponse<String> given = asked.get(timeout, TimeUnit.MILLISECONDS);
                text += ": " + given.statusCode() + " " + given.body();
                String after = given.headers().firstValue("Retry-After").filter(s -> s.matches("\\d{1,9}")).orElse("0");
                Answer answer = new Answer(given.statusCode(), Long.parseLong(after) * 1000);
                if (answer.is(200, 201) && !method.equals("DELETE")) {
                    long waited = number(given.body(), "waited_ms"), expires = number(given.body(), "expires_in_ms");
                    long renew = number(given.body(), "renew_in_ms"), fencing = number(given.body(), "fencing_token");
                    synchronized (this) {
                        if (asking > sent) { // one that was sent later may have been answered sooner
                            sent = asking;
                            deadline = sent + waited + expires;
                            renewAt = sent + waited + renew;
                            token = fencing;
                        }
                    }
                }
                if (answer.status / 100 == 4 && !text.contains("\"code\"")) return new Answer(0, answer.pause); // a proxy's
                if (answer.is(200, 201, 204, 400, 409, 412, 423)) turn.set(mine);
                return answer;
            } catch (Exception e) { // not the gateway's answer, or none in time
                if (asked != null) asked.cancel(true);
                text += ": " + e;
                return new Answer(0, 0);
            } finally {
                said = text.substring(0, Math.min(text.length(), 500));
            }
        }

        // Asks until a gateway decides, all refuse to let this wait, or the time is over. Returns the last answer.
        Answer insist(String method, long time) throws InterruptedException {
            long until = now() + time;
            Answer answer = new Answer(0, 0);
            int asked = 0, refused = 0;
            for (long left; refused < GATEWAYS.length && !(ending && !released) && (left = until - now()) > 0; ) {
                if (method.equals("POST")) {
                    long wait = Math.min(left, 5000);
                    answer = ask(method, "{\"ttl_ms\":" + TTL + ",\"wait_ms\":" + wait + ",\"owner\":\"java\"}", wait + 3000);
                    if (answer.is(200, 201) && left() > 0 || answer.is(404, 405, 413, 428)) break;
                    refused = answer.status / 100 == 3 || answer.is(401, 403, 421) ? refused + 1 : 0;
                } else {
                    answer = ask(method, "", Math.min(left, 2000));
                }
                if (answer.is(204, 400, 409, 412)) break;
                if (answer.is(423)) Thread.sleep(100); // the place in the queue is kept for some seconds
                else if (++asked % GATEWAYS.length == 0) Thread.sleep(Math.min(Math.max(answer.pause, 500), 3000));
            }
            return answer;
        }

        static long number(String json, String field) {
            Matcher m = Pattern.compile("\"" + field + "\":(\\d+)").matcher(json);
            if (!m.find()) throw new IllegalStateException(field + " is missing");
            return Long.parseLong(m.group(1));
        }

        void acquire(long wait) throws Exception {
            Answer answer = insist("POST", wait);
            if (!answer.is(200, 201) || left() <= 0) {
                int status = answer.is(401, 403) ? 77 : answer.is(409, 412, 423, 429) || said.contains("\"quarantined\"") ? 75
                    : answer.status / 100 == 3 || answer.status / 100 == 4 ? 64 : 69;
                throw new Failure(status, "the lock is not acquired: " + said);
            }
            start(this::watch);
            start(this::keep);
        }

        long left() {
            return deadline - now() - TTL / 10; // a tenth to spare
        }

        void end(String why) { // the main thread can't be asked, and perhaps nobody reads what is said
            try {
                start(() -> System.err.println(why));
                pause(100);
            } finally {
                Runtime.getRuntime().halt(124);
            }
        }

        void watch() { // no request, no output: nothing that can wait
            while (left() > 0) {
                pause(Math.min(left(), 200));
                if (released) return;
            }
            end("the lease is over; " + said);
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
            Answer answer = ask("PUT", "{}", timeout);
            if (answer.is(412) && !released) end("the lease is lost; " + said);
            if (answer.is(200)) return;
            long left = left();
            renewAt = Math.min(renewAt, now() + Math.max(left / 10, Math.min(answer.pause, left / 4)));
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

        void release() throws InterruptedException {
            released = true;
            insist("DELETE", 5000);
        }
    }

    static void work(Lease lease) throws Exception {
        lease.acquire(30000);
        for (int part = 1; part <= 20; part++) {
            if (lease.left() <= 0) throw new Failure(124, "the lease is over; " + lease.said); // it may have stood still
            String what = "part " + part + " is not written: ";
            HttpResponse<String> written;
            try {
                written = http.send(HttpRequest.newBuilder(URI.create(STORAGE)) // cut off by halt, if need be
                    .header("Fencing-Token", Long.toString(lease.token))
                    .PUT(BodyPublishers.ofString("part " + part + " by java")).build(), BodyHandlers.ofString());
            } catch (java.io.IOException e) {
                throw new Failure(1, what + e);
            }
            if (written.statusCode() / 100 != 2) {
                throw new Failure(written.statusCode() == 412 ? 124 : 1, what + written.statusCode() + " " + written.body());
            }
            Thread.sleep(200); // interrupted by a signal
        }
        System.out.println("20 parts are written");
    }

    public static void main(String[] args) {
        if (STORAGE.isEmpty()) {
            System.err.println("set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report");
            System.exit(2);
        }
        if (GATEWAYS.length == 0 || !Arrays.stream(GATEWAYS).allMatch(url -> url.matches("https?://([^/:@]+|\\[[^/]+])(:\\d+)?(/.*)?"))) {
            System.err.println("FENCEPOST has to be a list of URLs like http://127.0.0.1:8080");
            System.exit(64);
        }
        Lease lease = new Lease(LOCK);
        Thread main = Thread.currentThread();
        CountDownLatch stopped = new CountDownLatch(1);
        // It runs when the program ends, also by SIGTERM, SIGINT and SIGHUP: the work stops, then the lock is free.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            lease.ending = true;
            main.interrupt();
            try {
                stopped.await();
                lease.release();
            } catch (InterruptedException e) { // nobody interrupts this thread
            }
        }));
        int status = 0;
        try {
            work(lease);
        } catch (Failure e) {
            System.err.println(e.getMessage());
            status = e.status;
        } catch (Exception e) {
            if (!lease.ending) System.err.println(e);
            status = 1;
        } finally {
            stopped.countDown();
        }
        System.exit(status);
    }
}
