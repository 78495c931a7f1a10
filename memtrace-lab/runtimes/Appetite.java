// A JVM's appetite: 128 MiB of small arrays, dropped, collected. Speaks like memtrace-lab's programs.
//
//     java --source 11 Appetite.java            each phase waits for a line on standard input
//
// Phases: base, full, dropped (nothing refers to the arrays any more), collected (after System.gc()), later.

import java.io.IOException;

public class Appetite {
    static byte[][] held;

    public static void main(String[] arguments) throws Exception {
        phase("base");
        held = new byte[2048][];
        for (int i = 0; i < held.length; i++) {
            held[i] = new byte[65536];
        }
        phase("full");
        held = null;
        phase("dropped");
        System.gc();
        phase("collected");
        Thread.sleep(2000);
        phase("later");
    }

    static void phase(String name) throws IOException {
        System.out.println("phase=" + name + " pid=" + ProcessHandle.current().pid());
        System.out.flush();
        int character;
        do {
            character = System.in.read();
        } while (character != '\n' && character != -1);
    }
}
