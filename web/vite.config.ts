import { defineConfig } from "vite";

// Relative addresses throughout, so that the page works below any path prefix.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/torchvitals/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false }, // the polyfill is an inline script
    assetsInlineLimit: 0, // the page's policy allows no data: scripts or styles
  },
  server: {
    // `npm run dev` beside a `vitals ui --port 8765`; open it with ?token=… as printed there.
    proxy: { "/api": "http://127.0.0.1:8765" },
  },
});
